"""The members of `staged` → `usage_members`, and the quantity of each period → `usage_days`, on its first day.

The quantity is a function of all members of the period: nothing is ever subtracted from it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from jobs.billing.member_corrections import MemberCorrection, corrected_sets
from jobs.runtime.job import Counts
from metering.vocabulary import UsageCause
from metering.windows import MINUTE
from monitoring import metrics
from monitoring.instruments import CounterMetric

_HAS_CORRECTIONS = "SELECT bool_or(is_correction) FROM staged WHERE aggregation IS NOT NULL"
_SET = "account, day, model, meter, currency, price_version"

_TAKE = f"""
INSERT INTO usage_members AS old (
    account, first_day, model, meter, currency, price_version, member, value, occurred_at, member_rows
)
SELECT {_SET}, member, max(value), max(occurred_at), sum(quantity)
FROM staged WHERE aggregation IS NOT NULL AND is_correction = %(is_correction)s
GROUP BY {_SET}, member
ORDER BY {_SET}, member
ON CONFLICT ON CONSTRAINT usage_members_key DO UPDATE SET member_rows = old.member_rows + excluded.member_rows
"""

# A set without members has the quantity 0, and keeps its row.
_OF_SET = """
account = sets.account AND first_day = sets.day AND meter = sets.meter
AND (model, currency, price_version) IS NOT DISTINCT FROM (sets.model, sets.currency, sets.price_version)
AND member_rows > 0
"""
_COME_TO = f"""
INSERT INTO usage_days AS old (
    account, day, model, meter, currency, price_version, quantity, unit_price, usage_rows, first_window, last_window_end
)
SELECT {_SET}, trim_scale(coalesce(
           CASE aggregation
               WHEN 'unique' THEN (SELECT count(*) FROM usage_members WHERE {_OF_SET})
               ELSE (SELECT value FROM usage_members WHERE {_OF_SET} AND value IS NOT NULL
                     ORDER BY occurred_at DESC NULLS LAST, value DESC LIMIT 1)
           END, 0)),
       unit_price, usage_rows, first_window, last_window + %(minute)s
FROM (
    SELECT {_SET}, max(aggregation) AS aggregation, max(unit_price) AS unit_price, sum(quantity) AS usage_rows,
           min(window_start) AS first_window, max(window_start) AS last_window
    FROM staged WHERE aggregation IS NOT NULL GROUP BY {_SET}
) AS sets
ORDER BY {_SET}
ON CONFLICT ON CONSTRAINT usage_days_key DO UPDATE SET
    quantity = excluded.quantity,
    unit_price = coalesce(old.unit_price, excluded.unit_price),
    usage_rows = old.usage_rows + excluded.usage_rows,
    first_window = least(old.first_window, excluded.first_window),
    last_window_end = greatest(old.last_window_end, excluded.last_window_end),
    updated_at = now()
"""
_RECORD = """
INSERT INTO corrections (
    usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, old_quantity, new_quantity, old_amount,
    new_amount, period, decision
)
VALUES (
    %(usage_lsn)s, %(meter)s, %(usage_lsns)s, %(window_start)s, %(account)s, %(model)s, %(currency)s, %(cause)s,
    trim_scale(%(old_quantity)s), trim_scale(%(new_quantity)s), %(old_amount)s, %(new_amount)s, %(period)s,
    CASE WHEN %(cause)s = 'stream' THEN 'correct' END
)
"""
_IS_CORRECTED = """
UPDATE usage_days SET corrected = true
WHERE account = %(account)s AND day = %(first_day)s AND meter = %(meter)s
  AND (model, currency) IS NOT DISTINCT FROM (%(model)s, %(currency)s)
"""
_UNPRICED = """
SELECT meter, sum(metered_rows)::bigint FROM staged
WHERE aggregation IS NOT NULL AND cause = %s AND price_version IS NULL AND model IS NOT NULL GROUP BY meter
"""
_REMOVE = "DELETE FROM staged WHERE aggregation IS NOT NULL"


def take_members(cursor: psycopg.Cursor[Any]) -> Counts:
    """Move the members of `staged` to their periods. Returns the counts of corrections and of unpriced rows.

    A change of a closed period is a correction, applied in the order of usage after everything else in `staged`. A
    change that leaves quantity and amount as they were is none.
    """
    found = cursor.execute(_HAS_CORRECTIONS).fetchone()
    has_corrections = found[0] if found else None
    if has_corrections is None:
        return {}
    cursor.execute(_TAKE, {"is_correction": False})
    corrections: list[MemberCorrection] = []
    if has_corrections:
        corrections = corrected_sets(cursor)
        cursor.execute(_TAKE, {"is_correction": True})
    cursor.execute(_COME_TO, {"minute": MINUTE})
    for correction in corrections:
        cursor.execute(_RECORD, correction.parameters)
        cursor.execute(_IS_CORRECTED, correction.parameters)
    counts: Counter[tuple[CounterMetric, *tuple[str, ...]]] = Counter()
    for correction in corrections:
        counts[metrics.CORRECTIONS, correction.meter, correction.cause] += 1
    for meter, rows in cursor.execute(_UNPRICED, [UsageCause.STREAM.value]).fetchall():
        counts[metrics.UNPRICED, meter] += rows
    cursor.execute(_REMOVE)
    return counts
