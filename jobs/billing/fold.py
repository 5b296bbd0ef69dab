"""The sums of one micro-batch → `usage_windows`, `stragglers`, `corrections` and `usage_days`.

Rows that cannot be summed are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from jobs.billing import outbox
from jobs.billing.config import BillingConfig
from jobs.billing.corrections import inherit, record
from jobs.billing.days import add_days
from jobs.billing.holding import decide, keep_decided, let_small_go
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
# a currency too, so each finds its window by the key's index.
REPRICED = """
SELECT price_version FROM staged GROUP BY price_version HAVING min(unit_price) <> max(unit_price)
UNION ALL
SELECT staged.price_version
FROM staged JOIN usage_windows USING (window_start, account, model, meter, currency, price_version)
WHERE usage_windows.unit_price <> staged.unit_price
LIMIT 1
"""

# Null is not 0: a completion that came and did not report a meter leaves a row that counts it. A zero leaves nothing.
# The amount is the row's own quantity times its unit price: nothing adds it up, so nothing rounds or ends it.
# A window that no row had reached before is still corrected by a straggler: it had closed, empty. What was late or not
# reported is counted as it arrives, and not taken back with it. A version grows as the position does, and by 1 with
# each straggler: so one deadline after the other and all at once make the same of it.
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
FROM staged
WHERE {IS_BILLED}
GROUP BY window_start, account, model, meter, currency, price_version
ORDER BY window_start, account, model, meter, currency, price_version
ON CONFLICT ON CONSTRAINT usage_windows_key DO UPDATE SET
    quantity = trim_scale(old.quantity + excluded.quantity),
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
       coalesce(sum(metered_rows) FILTER (WHERE NOT is_contained OR (decision IS NOT NULL AND is_alone)), 0),
       sum(unmetered_rows)
FROM (
    SELECT *, coalesce(price_version <= {BILLED_AS_PART}, false) AS is_contained,
           count(*) OVER (PARTITION BY usage_lsn, meter) = 1 AS is_alone
    FROM staged WHERE cause = %s
) AS of_stream GROUP BY 1, 2, 3, 4
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
    repriced = cursor.execute(REPRICED).fetchone()
    if repriced is not None:
        raise Refused(
            f"usage holds price version {repriced[0]} at another unit price than the windows it was billed in; restore "
            "the usage table that wrote them and start billing again"
        )
    of_sets = take_members(cursor, around)
    let_small_go(cursor)
    arrived = cursor.execute(COUNT, (UsageCause.STREAM.value,)).fetchall()
    is_decided = decide(cursor, around.frontier, around.next_position)
    inherit(cursor)
    corrections = record(cursor)
    cursor.execute(ADD, {"minute": MINUTE, "position": around.next_position})
    if Published.WINDOWS in config.publish:
        outbox.note(cursor, around.next_position)
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


def _is_part(config: BillingConfig, meter: str) -> bool:
    """Whether another meter counts the same units: that one bills them."""
    declared = config.meters.get(meter)
    return declared is not None and declared.within is not None
