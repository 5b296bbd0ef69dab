"""The members of `staged` → `usage_members`, and the quantity of each period → `usage_days`, on its first day.

The quantity is a function of all members of the period. New members add to a count; after a removal all members are
counted again, so that nothing is ever subtracted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from jobs.billing.member_corrections import DUE_PERIODS, corrected_sets, due
from jobs.billing.rules import closed_until
from jobs.runtime.job import Counts, Fold
from metering.vocabulary import UsageCause
from metering.windows import MINUTE
from monitoring import metrics
from monitoring.instruments import CounterMetric

_HAS_MEMBERS = "SELECT EXISTS (SELECT FROM staged WHERE aggregation IS NOT NULL)"
_SET = "account, day, model, meter, currency, price_version"
_IS_SAME_SET = """
{known}.account = {other}.account AND {known}.{day} = {other}.day AND {known}.meter = {other}.meter
AND ({known}.model, {known}.currency, {known}.price_version)
    IS NOT DISTINCT FROM ({other}.model, {other}.currency, {other}.price_version)
"""

# Returns how many new members each set has, as a JSON list for `_QUANTITIES`; a set without one is not in it.
_TAKE = f"""
WITH changes AS (
    SELECT {_SET}, member, max(value) AS value, max(occurred_at) AS occurred_at, sum(quantity) AS change
    FROM staged WHERE aggregation IS NOT NULL
    GROUP BY {_SET}, member
), taken AS (
    INSERT INTO usage_members AS old (
        account, first_day, model, meter, currency, price_version, member, value, occurred_at, member_rows
    )
    SELECT {_SET}, member, value, occurred_at, change FROM changes ORDER BY {_SET}, member
    ON CONFLICT ON CONSTRAINT usage_members_key DO UPDATE SET member_rows = old.member_rows + excluded.member_rows
    RETURNING account, first_day, model, meter, currency, price_version, member, member_rows
)
SELECT coalesce(jsonb_agg(grown), '[]') FROM (
    SELECT changes.account, changes.day, changes.model, changes.meter, changes.currency, changes.price_version,
           count(*) AS added
    FROM taken JOIN changes
      ON taken.member = changes.member AND {_IS_SAME_SET.format(known="taken", other="changes", day="first_day")}
    WHERE member_rows > 0 AND member_rows - change <= 0
    GROUP BY 1, 2, 3, 4, 5, 6
) AS grown
"""

# Without removals a count grows by its new members: counting a set of a million takes seconds. The index finds the
# number to bill only by equality, so a set without a model, currency or price is sorted. A set without members has the
# quantity 0, and keeps its row.
_IN_SET = _IS_SAME_SET.format(known="usage_members", other="sets", day="first_day")
_IN_EXACT_SET = """
account = sets.account AND first_day = sets.day AND meter = sets.meter
AND model = sets.model AND currency = sets.currency AND price_version = sets.price_version
"""
_NUMBERS = "member_rows > 0 AND value IS NOT NULL"
_LAST = f"{_NUMBERS} ORDER BY occurred_at DESC NULLS LAST, value DESC LIMIT 1"
_LEAST = f"{_NUMBERS} ORDER BY occurred_at NULLS FIRST, value LIMIT 1"
"""The order of the same index, backwards."""
_QUANTITIES = f"""
WITH new_members AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%(new_members)s) AS listed (
        account text, day date, model text, meter text, currency text, price_version bigint, added bigint
    )
)
INSERT INTO usage_days AS old (
    account, day, model, meter, currency, price_version, quantity, unit_price, usage_rows, first_window,
    last_window_end, next_position
)
SELECT {_SET}, trim_scale(coalesce(
           CASE
               WHEN aggregation = 'unique' AND has_removals
                   THEN (SELECT count(*) FROM usage_members WHERE {_IN_SET} AND member_rows > 0)
               WHEN aggregation = 'unique'
                   THEN coalesce((
                       SELECT quantity FROM usage_days AS known
                       WHERE {_IS_SAME_SET.format(known="known", other="sets", day="day")}
                   ), 0) + coalesce((
                       SELECT sum(added) FROM new_members
                       WHERE {_IS_SAME_SET.format(known="new_members", other="sets", day="day")}
                   ), 0)
               WHEN aggregation = 'min' AND num_nulls(model, currency, price_version) = 0
                   THEN (SELECT value FROM usage_members WHERE {_IN_EXACT_SET} AND {_LEAST})
               WHEN aggregation = 'min'
                   THEN (SELECT value FROM usage_members WHERE {_IN_SET} AND {_LEAST})
               WHEN num_nulls(model, currency, price_version) = 0
                   THEN (SELECT value FROM usage_members WHERE {_IN_EXACT_SET} AND {_LAST})
               ELSE (SELECT value FROM usage_members WHERE {_IN_SET} AND {_LAST})
           END, 0)),
       unit_price, usage_rows, first_window, last_window + %(minute)s, %(position)s
FROM (
    SELECT {_SET}, max(aggregation) AS aggregation, max(unit_price) AS unit_price, sum(quantity) AS usage_rows,
           min(window_start) AS first_window, max(window_start) AS last_window, bool_or(quantity < 0) AS has_removals
    FROM staged WHERE aggregation IS NOT NULL GROUP BY {_SET}
) AS sets
ORDER BY {_SET}
ON CONFLICT ON CONSTRAINT usage_days_key DO UPDATE SET
    quantity = excluded.quantity,
    unit_price = coalesce(old.unit_price, excluded.unit_price),
    usage_rows = old.usage_rows + excluded.usage_rows,
    first_window = least(old.first_window, excluded.first_window),
    last_window_end = greatest(old.last_window_end, excluded.last_window_end),
    next_position = excluded.next_position,
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


# History that comes after the close changes the period without a correction. It has a place among the corrections only
# where one of lower lsn waits.
_LATE_COLUMNS = """
usage_lsn, meter, is_correction, cause, corrects_lsns, account, first_day, model, currency, price_version, aggregation,
period, window_start, ends_at, member, value, occurred_at, member_rows
"""
_LATE = f"""
INSERT INTO late_members ({_LATE_COLUMNS})
SELECT first_lsn, meter, is_correction, cause, corrects_lsns::bigint[], account, day, model, currency, price_version,
       aggregation, period, window_start, ends_at, member, value, occurred_at, quantity
FROM staged WHERE aggregation IS NOT NULL AND ends_at IS NOT NULL
"""
_WAIT = (
    f"{_LATE} AND is_correction",
    f"""{_LATE} AND NOT is_correction AND EXISTS (
        SELECT FROM late_members AS waiting
        WHERE (waiting.account, waiting.first_day, waiting.meter) = (staged.account, staged.day, staged.meter)
          AND (waiting.model, waiting.currency) IS NOT DISTINCT FROM (staged.model, staged.currency)
          AND waiting.is_correction AND waiting.usage_lsn < staged.first_lsn
    )""",
)
_IS_DUE = f"SELECT EXISTS {DUE_PERIODS}"


def take_members(cursor: psycopg.Cursor[Any], around: Fold) -> Counts:
    """Move the members of `staged` to their periods. Returns the counts of corrections and of unpriced rows.

    A change of a closed period is billed at once. Its correction waits until F has passed the close: then all usage
    that was on time is known, and every cut of usage into batches gives the same corrections. A change that leaves
    quantity and amount as they were is none.
    """
    counts: Counter[tuple[CounterMetric, *tuple[str, ...]]] = Counter()
    found = cursor.execute(_HAS_MEMBERS).fetchone()
    if found and found[0]:
        taken = cursor.execute(_TAKE).fetchone()
        members = Jsonb([] if taken is None else taken[0])
        cursor.execute(_QUANTITIES, {"minute": MINUTE, "new_members": members, "position": around.next_position})
        for statement in _WAIT:
            cursor.execute(statement)
        for meter, rows in cursor.execute(_UNPRICED, [UsageCause.STREAM.value]).fetchall():
            counts[metrics.UNPRICED, meter] += rows
        cursor.execute(_REMOVE)
    if around.is_whole and is_correction_due(cursor, around):
        for correction in corrected_sets(cursor, closed_until(around.rules, around.frontier)):
            cursor.execute(_RECORD, correction.parameters)
            cursor.execute(_IS_CORRECTED, correction.parameters)
            counts[metrics.CORRECTIONS, correction.meter, correction.cause] += 1
    return counts


def is_correction_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    """Whether a correction waits for a close that F has passed."""
    found = cursor.execute(_IS_DUE, due(closed_until(around.rules, around.frontier))).fetchone()
    return bool(found and found[0])
