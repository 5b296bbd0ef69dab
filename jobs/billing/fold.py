"""The sums of one micro-batch → `usage_windows`, `stragglers`, `corrections` and `usage_days`.

Rows that cannot be summed are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import psycopg

from jobs.billing import outbox
from jobs.billing.config import BillingConfig
from jobs.billing.corrections import inherit, record
from jobs.billing.days import add_days
from jobs.billing.holding import decide, is_due, keep_decided, let_small_go
from jobs.billing.members import take_members
from jobs.billing.staged import IS_BILLED
from jobs.runtime.errors import Refused
from jobs.runtime.job import Counts, Fold
from metering.pricing import BILLED_AS_PART
from metering.vocabulary import Published, UsageCause
from metering.windows import MINUTE
from monitoring import metrics
from monitoring.instruments import CounterMetric

# Only here a wrong row can be recognised; once it is added to a window it cannot.
UNSOUND = """
SELECT cause, sign FROM staged
WHERE cause <> ALL (%(known)s) OR sign NOT IN (1, -1) OR unsound_rows > 0 OR lowest_unit_price <> unit_price
ORDER BY cause <> ALL (%(known)s) DESC LIMIT 1
"""

# Another unit price under one version would change what its windows were billed at. Rows with a price have a model and
# a currency too, so each finds its window by the key's index: one by one (OFFSET 0), as few rows stand alone, and the
# planner expects all of them to.
UNEQUAL = "SELECT price_version FROM staged GROUP BY price_version HAVING min(unit_price) <> max(unit_price) LIMIT 1"
REPRICED = """
SELECT alone.price_version
FROM staged AS alone CROSS JOIN LATERAL (
    SELECT unit_price FROM usage_windows AS known
    WHERE (known.window_start, known.account, known.model, known.meter, known.currency, known.price_version)
        = (alone.window_start, alone.account, alone.model, alone.meter, alone.currency, alone.price_version)
    OFFSET 0
) AS billed
WHERE alone.usage_lsn IS NOT NULL AND billed.unit_price <> alone.unit_price
LIMIT 1
"""

# Stragglers, what corrects others, and decisions. Most batches have none of them, and skip what is about them alone.
STANDS_ALONE = "SELECT FROM staged WHERE usage_lsn IS NOT NULL LIMIT 1"

# Null is not 0: a completion that came and did not report a meter leaves a row that counts it. A zero leaves nothing.
# The amount is the row's own quantity times its unit price: nothing adds it up, so nothing rounds or ends it.
# A window that no row had reached before is still corrected by a straggler: it had closed, empty. What was late or not
# reported is counted as it arrives, and not taken back with it. A version grows as the position does, and by 1 with
# each straggler: so one deadline after the other and all at once make the same of it. Rows are sorted before they are
# added up: most keys have one row, and would be hashed and sorted. A window of another unit price gets no number: the
# statement fails, and its error names the version.
ADD = f"""
INSERT INTO usage_windows AS old (
    window_start, window_end, account, model, meter, currency, price_version,
    quantity, unit_price, late_quantity, late_rows, unmetered_rows, corrected, version, next_position
)
SELECT window_start, window_start + %(minute)s, account, model, meter, currency, price_version,
       trim_scale(sum(quantity)), max(unit_price),
       trim_scale(coalesce(sum(quantity) FILTER (WHERE late), 0)), coalesce(sum(metered_rows) FILTER (WHERE late), 0),
       sum(unmetered_rows), bool_or(is_correction),
       %(position)s + coalesce(sum(metered_rows) FILTER (WHERE decision IS NOT NULL), 0), %(position)s
FROM (
    SELECT window_start, account, model, meter, currency, price_version, unit_price, quantity, metered_rows,
           unmetered_rows, late, is_correction, decision
    FROM staged
    WHERE {IS_BILLED}
    ORDER BY window_start, account, model, meter, currency, price_version
) AS sorted
GROUP BY window_start, account, model, meter, currency, price_version
ORDER BY window_start, account, model, meter, currency, price_version
ON CONFLICT ON CONSTRAINT usage_windows_key DO UPDATE SET
    quantity = CASE
        WHEN old.unit_price <> excluded.unit_price THEN ('price version ' || excluded.price_version)::numeric
        ELSE trim_scale(old.quantity + excluded.quantity)
    END,
    unit_price = coalesce(old.unit_price, excluded.unit_price),
    late_quantity = trim_scale(old.late_quantity + excluded.late_quantity),
    late_rows = old.late_rows + excluded.late_rows,
    unmetered_rows = old.unmetered_rows + excluded.unmetered_rows,
    corrected = old.corrected OR excluded.corrected,
    version = old.version + greatest(
        1,
        greatest(0, excluded.next_position - coalesce(old.next_position, old.version))
        + excluded.version - excluded.next_position
    ),
    next_position = excluded.next_position,
    updated_at = now()
"""

# Units that another meter bills are a row of their own in `staged`; here they are a part of their straggler.
_OF_THE_REST = (
    f"coalesce(max({{value}}) FILTER (WHERE price_version > {BILLED_AS_PART}), "
    f"CASE WHEN bool_and(coalesce(price_version <= {BILLED_AS_PART}, false)) THEN max({{value}}) END)"
)

# What was held is here already, and is decided once: null, which the table refuses, where it comes a second time.
RECORD = f"""
INSERT INTO stragglers AS old (
    usage_lsn, meter, account, model, request_id, window_start, event_time, received_at, late_seconds,
    decision, quantity, contained_quantity, unit_price, price_version, currency, cause, corrects_lsns, day, dimensions,
    hold_until, hold_expires, sign, settled
)
SELECT usage_lsn, meter, account, model, request_id, window_start, event_time, received_at,
       greatest(0, extract(epoch FROM received_at - (window_start + %s))),
       decision, trim_scale(sum(quantity)),
       trim_scale(coalesce(sum(quantity) FILTER (WHERE price_version <= {BILLED_AS_PART}), 0)),
       {_OF_THE_REST.format(value="unit_price")}, {_OF_THE_REST.format(value="price_version")},
       currency, cause, corrects_lsns::bigint[], day,
       dimensions::jsonb, hold_until, hold_expires, sign, CASE WHEN decision = 'hold' THEN 0 END
FROM staged
WHERE decision IS NOT NULL AND metered_rows > 0
GROUP BY usage_lsn, meter, account, model, request_id, window_start, event_time, received_at, decision, currency,
         cause, corrects_lsns, day, dimensions, hold_until, hold_expires, sign
ORDER BY usage_lsn, meter
ON CONFLICT (usage_lsn, meter) DO UPDATE SET
    decision = CASE WHEN old.decision = 'hold' THEN excluded.decision END,
    settled = CASE WHEN excluded.decision <> 'hold' THEN nextval('settled_stragglers') ELSE 0 END
"""

# Only arrivals: corrected usage was counted when it arrived. Without a model no price can match: a completion whose
# request never came. Units that another meter bills are counted with that meter; a straggler is counted once.
COUNT = f"""
SELECT meter, decision, late, price_version IS NULL AND model IS NOT NULL,
       coalesce(sum(metered_rows) FILTER (WHERE is_single OR coalesce(price_version > {BILLED_AS_PART}, true)), 0),
       sum(unmetered_rows)
FROM ({{rows}}) AS of_stream GROUP BY 1, 2, 3, 4
"""
ORDINARY = "SELECT *, false AS is_single FROM staged"
WITH_STRAGGLERS = f"""
{ORDINARY} WHERE usage_lsn IS NULL
UNION ALL
SELECT *, count(*) OVER (PARTITION BY usage_lsn, meter) = 1 FROM staged WHERE usage_lsn IS NOT NULL AND cause = %s
"""


def fold(cursor: psycopg.Cursor[Any], config: BillingConfig, around: Fold) -> Counts:
    """Add `staged`, and stragglers decided now, to `usage_windows`, `usage_days` and `usage_members`.

    Records stragglers and corrections. Returns how many rows were late, stragglers, unpriced and unmetered, how many
    waiting stragglers were decided, and how many corrections there are.

    Raises Refused for usage that cannot be summed: an unknown cause, a sign other than 1 or -1, an amount that is not
    quantity times unit price, or a unit price that differs from the earlier one of its price version.
    """
    unsound = cursor.execute(UNSOUND, {"known": list(UsageCause)}).fetchone()
    if unsound is not None:
        cause, sign = unsound
        raise Refused(
            f"usage holds rows of cause '{cause}' and sign {sign} that this version of billing cannot add up (it knows "
            f"the causes {', '.join(UsageCause)}, sign 1 or -1, and an amount with every price: quantity x unit price, "
            "one per price version); install the version that wrote them and start billing again"
        )
    _refuse_unequal(cursor, UNEQUAL)
    stands_alone = cursor.execute(STANDS_ALONE).fetchone() is not None
    if stands_alone:
        # Some are never billed. All other rows are in windows, which `ADD` finds anyway.
        _refuse_unequal(cursor, REPRICED)
    of_sets = take_members(cursor, around)
    arrived = _arrived(cursor, stands_alone=stands_alone)
    stands_alone = stands_alone or is_due(cursor, around.frontier)
    is_decided = stands_alone and decide(cursor, around.frontier, around.next_position)
    if stands_alone:
        inherit(cursor)
    corrections = record(cursor) if stands_alone else ()
    _add_windows(cursor, around.next_position)
    if Published.WINDOWS in config.publish:
        outbox.note(cursor, around.next_position)
    if stands_alone:
        cursor.execute(RECORD, (MINUTE,))
    add_days(cursor, around.next_position)
    counts: Counter[tuple[CounterMetric, *tuple[str, ...]]] = Counter()
    for meter, decision, count in keep_decided(cursor) if is_decided else ():
        counts[metrics.STRAGGLERS, meter, decision] += count
    counts.update(of_sets)
    for meter, cause, count in corrections:
        counts[metrics.CORRECTIONS, meter, cause] += count
    for meter, decision, late, unpriced, *rows in arrived:
        metered_rows, unmetered_rows = map(int, rows)
        counts[metrics.LATE, meter] += metered_rows if late else 0
        if not _is_part(config, meter):
            counts[metrics.UNPRICED, meter] += metered_rows if unpriced else 0
            counts[metrics.UNMETERED, meter] += unmetered_rows
        if decision is not None:
            counts[metrics.STRAGGLERS, meter, decision] += metered_rows
    return counts


def _arrived(cursor: psycopg.Cursor[Any], *, stands_alone: bool) -> list[tuple[Any, ...]]:
    if not stands_alone:
        return cursor.execute(COUNT.format(rows=ORDINARY)).fetchall()
    let_small_go(cursor)
    return cursor.execute(COUNT.format(rows=WITH_STRAGGLERS), [UsageCause.STREAM.value]).fetchall()


def _refuse_unequal(cursor: psycopg.Cursor[Any], query: str) -> None:
    found = cursor.execute(query).fetchone()
    if found is not None:
        raise _repriced(found[0])


def _repriced(version: int | str) -> Refused:
    return Refused(
        f"usage holds price version {version} at another unit price than the windows it was billed in; restore "
        "the usage table that wrote them and start billing again"
    )


def _add_windows(cursor: psycopg.Cursor[Any], position: int) -> None:
    try:
        cursor.execute(ADD, {"minute": MINUTE, "position": position})
    except psycopg.errors.InvalidTextRepresentation as error:
        found = re.search(r"price version (-?\d+)", str(error))
        if found is None:
            raise
        raise _repriced(found[1]) from error


def _is_part(config: BillingConfig, meter: str) -> bool:
    """Whether another meter counts the same units: that one bills them."""
    declared = config.meters.get(meter)
    return declared is not None and declared.within is not None
