"""Changes of windows that were shown closed → `corrections`: what the window was, what it is, and which usage did it.

Rows of another cause than `stream` are not classified by their arrival: each inherits the decisions about the rows that
it negates or replaces, meter by meter.
"""

from __future__ import annotations

from typing import Any

import psycopg

from jobs.billing.staged import IS_BILLED
from metering.vocabulary import Decision, UsageCause
from metering.windows import MINUTE

_ORDER = f"ARRAY[{', '.join(repr(decision.value) for decision in Decision)}]"

_HOLDS_ANY = "SELECT FROM staged WHERE cause <> %(stream)s LIMIT 1"

# Without statistics a single correcting row would make the planner read all stragglers that ever were.
_ANALYZE = "ANALYZE staged"

# A corrected row may be in the same batch, and correct others itself. A row that replaces two (a request and its
# completion that were billed apart) inherits, meter by meter, the decision of the one that had a quantity; if both had
# one, it corrects the window if either did, and waits if either still may. But on-time usage was billed: a row that
# replaces it is billed at once, regardless of a straggler that it also replaces. So a better report is
# billed with all that it reports, even where the on-time report lacked it; in a pair that was billed apart each meter
# is decided separately. For rows that were no stragglers, only the rows that take them back record that they were
# billed. That is remembered, because a batch may end before the rows that replace them.
# What had waited until now is in `staged` again. A row takes effect at its own lsn, and not before the first that
# bills it does. A straggler is always a correction, so a row that takes it back or replaces it is one, too: whether
# its window had closed is not stored meanwhile.
_INHERIT = f"""
WITH RECURSIVE named AS (
    SELECT usage_lsn, meter, unnest(corrects_lsns::bigint[]) AS corrected_lsn, metered_rows > 0 AS is_metered,
           cause = %(restated)s AND sign > 0 AS is_whole
    FROM staged WHERE cause <> %(stream)s
), decided (usage_lsn, meter, decision, is_metered, first_lsn) AS (
    (
        SELECT usage_lsn, meter, decision, true, first_lsn FROM staged WHERE decision IS NOT NULL AND metered_rows > 0
        UNION
        SELECT stragglers.usage_lsn, meter, decision, true, 0
        FROM stragglers JOIN named USING (meter)
        WHERE stragglers.usage_lsn = named.corrected_lsn AND NOT EXISTS (
            SELECT FROM staged WHERE (staged.usage_lsn, staged.meter) = (stragglers.usage_lsn, stragglers.meter)
        )
    )
    UNION
    SELECT named.usage_lsn, meter, decision, named.is_metered, greatest(named.usage_lsn, first_lsn)
    FROM decided JOIN named USING (meter) WHERE decided.usage_lsn = named.corrected_lsn AND decided.is_metered
), undecided AS (
    SELECT usage_lsn, meter, sign FROM staged AS correcting
    WHERE cause <> %(stream)s AND metered_rows > 0 AND NOT EXISTS (
        SELECT FROM decided WHERE (decided.usage_lsn, decided.meter) = (correcting.usage_lsn, correcting.meter)
    )
), on_time (usage_lsn, meter) AS (
    (
        SELECT known.usage_lsn, known.meter
        FROM taken_back_on_time AS known JOIN named ON known.usage_lsn = named.corrected_lsn
        UNION
        SELECT usage_lsn, meter FROM undecided
        UNION
        SELECT corrected_lsn, meter FROM undecided JOIN named USING (usage_lsn, meter) WHERE undecided.sign < 0
    )
    UNION
    SELECT named.usage_lsn, named.meter
    FROM on_time JOIN named ON on_time.usage_lsn = named.corrected_lsn
    WHERE named.is_metered AND (named.is_whole OR on_time.meter = named.meter)
), inherited AS (
    SELECT usage_lsn, meter, ({_ORDER})[min(array_position({_ORDER}, decision))] AS decision,
           min(first_lsn) FILTER (WHERE {IS_BILLED}) AS first_lsn
    FROM decided
    WHERE NOT EXISTS (SELECT FROM on_time WHERE (on_time.usage_lsn, on_time.meter) = (decided.usage_lsn, decided.meter))
    GROUP BY usage_lsn, meter
)
UPDATE staged SET
    decision = inherited.decision,
    first_lsn = coalesce(inherited.first_lsn, staged.first_lsn),
    is_correction = staged.metered_rows > 0 AND {IS_BILLED.replace("decision", "inherited.decision")} AND (
        inherited.decision IS NOT NULL OR coalesce(
            staged.was_closed,
            staged.window_start + %(minute)s <= coalesce(closed_meters.closed_until, closed_usage.closed_until), false
        )
    )
FROM staged AS correcting
LEFT JOIN inherited USING (usage_lsn, meter)
LEFT JOIN closed_meters USING (meter)
LEFT JOIN closed_usage ON true
WHERE correcting.cause <> %(stream)s AND (staged.usage_lsn, staged.meter) = (correcting.usage_lsn, correcting.meter)
"""

# What is repriced is replaced by a row that names nothing else.
_REMEMBER = """
INSERT INTO taken_back_on_time
SELECT DISTINCT unnest(corrects_lsns::bigint[]), meter
FROM staged
WHERE cause NOT IN (%(stream)s, %(repriced)s) AND sign < 0 AND metered_rows > 0 AND decision IS NULL
ON CONFLICT DO NOTHING
"""

# One after the other, in the order in which they take effect: each begins with what the one before it left. Amounts are
# of quantities per price version, null as long as nothing of the window has a price. Rows that correct one row together
# (a pair that was billed apart: the one, the other, and both) are one correction.
_RECORD = f"""
WITH correcting AS (
    SELECT *, coalesce(corrects_lsns::bigint[], ARRAY[usage_lsn]) AS named FROM staged WHERE is_correction
), linked AS (
    SELECT lsn, min(lowest) AS lowest FROM (
        SELECT unnest(named) AS lsn, (SELECT min(lsn) FROM unnest(named) AS of_row (lsn)) AS lowest
        FROM correcting WHERE corrects_lsns IS NOT NULL
    ) AS each GROUP BY lsn
), corrected AS (
    SELECT min(first_lsn) AS first_lsn, min(usage_lsn) AS usage_lsn,
           array_agg(DISTINCT usage_lsn ORDER BY usage_lsn) AS usage_lsns, window_start, account, model, meter,
           currency, dimensions::jsonb AS dimensions, cause, decision, sum(quantity) AS quantity,
           sum(quantity * unit_price) AS amount
    FROM correcting LEFT JOIN linked ON corrects_lsns IS NOT NULL AND lsn = named[1]
    GROUP BY window_start, account, model, meter, currency, dimensions::jsonb, cause, decision,
             coalesce(lowest, usage_lsn)
), concerned AS (
    SELECT DISTINCT window_start, account, meter FROM corrected
), parts AS (
    SELECT 0 AS first_lsn, 0 AS usage_lsn, window_start, account, model, meter, currency, stored.quantity,
           stored.amount
    FROM concerned JOIN usage_windows AS stored USING (window_start, account, meter)
    UNION ALL
    SELECT 0, 0, window_start, account, model, meter, currency, staged.quantity, staged.quantity * staged.unit_price
    FROM concerned JOIN staged USING (window_start, account, meter)
    WHERE NOT staged.is_correction AND {IS_BILLED}
    UNION ALL
    SELECT first_lsn, usage_lsn, window_start, account, model, meter, currency, quantity, amount FROM corrected
), running AS (
    SELECT usage_lsn, meter,
           sum(quantity) OVER before AS old_quantity, sum(quantity) OVER until AS new_quantity,
           sum(amount) OVER before AS old_amount, sum(amount) OVER until AS new_amount
    FROM parts
    WINDOW sofar AS (PARTITION BY window_start, account, model, meter, currency ORDER BY first_lsn, usage_lsn),
           before AS (sofar GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
           until AS (sofar GROUPS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), made AS (
    INSERT INTO corrections (
        usage_lsn, meter, usage_lsns, window_start, account, model, currency, dimensions, cause, decision,
        old_quantity, new_quantity, old_amount, new_amount
    )
    SELECT usage_lsn, meter, usage_lsns, window_start, account, model, currency, dimensions, cause, decision,
           trim_scale(coalesce(old_quantity, 0)), trim_scale(new_quantity), old_amount, new_amount
    FROM corrected JOIN running USING (usage_lsn, meter)
    ORDER BY first_lsn, usage_lsn, meter
    RETURNING meter, cause
)
SELECT meter, cause, count(*) FROM made GROUP BY 1, 2
"""


def inherit(cursor: psycopg.Cursor[Any]) -> None:
    """Give the rows of `staged` that correct others their decision, and say whose window was shown closed by now."""
    causes = {"stream": UsageCause.STREAM.value}
    if cursor.execute(_HOLDS_ANY, causes).fetchone() is not None:
        cursor.execute(_ANALYZE)
        cursor.execute(_INHERIT, {**causes, "restated": UsageCause.RESTATED.value, "minute": MINUTE})
        cursor.execute(_REMEMBER, {**causes, "repriced": UsageCause.REPRICED.value})


def record(cursor: psycopg.Cursor[Any]) -> list[tuple[str, str, int]]:
    """Add what `staged` corrects to `corrections`, before it is in the windows. Returns (meter, cause, how many)."""
    return cursor.execute(_RECORD).fetchall()
