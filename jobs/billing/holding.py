"""Stragglers that wait: which do, and what a decision or the deadline makes of them and of their corrections.

A decision is a row of usage, so it is applied once, in usage order, in the transaction that reads it. It counts if it
was received before the deadline, and the first that counts wins. F ends the wait of all others. joins never gives a
decision a reception earlier than the F that it published before, so no decision can count after its deadline has
passed, however usage is cut into batches.

What is decided passes through `staged` like new usage, so windows, days and corrections have one code path.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import psycopg

from metering.pricing import BILLED_AS_PART
from metering.vocabulary import UsageCause

_ASK = """
SELECT EXISTS (SELECT FROM staged WHERE cause = %(decided)s), EXISTS (SELECT FROM staged WHERE decision = 'hold'),
       EXISTS (SELECT FROM stragglers WHERE decision = 'hold' AND hold_until <= %(frontier)s)
"""
_IS_DUE = "SELECT EXISTS (SELECT FROM stragglers WHERE decision = 'hold' AND hold_until <= %s)"

# An amount is a product, which is made here alone. What has no price is not known to be worth little. Of units that
# another meter bills, which are worth nothing here, the rest decides.
_LET_SMALL_GO = """
UPDATE staged SET decision = 'correct', is_correction = true, hold_until = NULL, hold_expires = NULL
FROM (
    SELECT usage_lsn, meter FROM staged WHERE decision = 'hold' GROUP BY usage_lsn, meter
    HAVING bool_and(abs(quantity * unit_price) <= hold_above) IS TRUE AND bool_and(unit_price IS NOT NULL)
) AS small
WHERE (staged.usage_lsn, staged.meter) = (small.usage_lsn, small.meter)
"""

_DECISIONS = """
CREATE TEMP TABLE read_decisions ON COMMIT DROP AS
SELECT (corrects_lsns::bigint[])[1] AS held_lsn, meter, account, request_id, usage_lsn AS decided_lsn, received_at,
       dimensions::jsonb ->> 'decision' AS decision, dimensions::jsonb ->> 'decided_by' AS decided_by,
       dimensions::jsonb ->> 'reason' AS reason
FROM staged WHERE cause = %(decided)s AND dimensions::jsonb ->> 'decision' IN ('approve', 'reject')
"""
_REMOVE_DECISIONS = "DELETE FROM staged WHERE cause = %(decided)s"

# As it came once: a straggler is one row of usage, with what of its meter it bills, and what another meter bills.
_COLUMNS = """
window_start, account, model, meter, currency, price_version, unit_price, lowest_unit_price, cause, sign, late,
usage_lsn, corrects_lsns, request_id, decision, hold_until, hold_expires, is_correction, day, dimensions, first_lsn,
event_time, received_at, quantity, metered_rows, unmetered_rows, unsound_rows
"""
_STORED = """
window_start, account, model, meter, currency, part.price_version, part.unit_price, part.unit_price, cause,
coalesce(sign, sign(stored.quantity)::integer), false, usage_lsn, corrects_lsns::text, request_id, decision, hold_until,
hold_expires, false, day, dimensions::text, usage_lsn, event_time, received_at, part.quantity, 1, 0, 0
"""
_PARTS = f"""
CROSS JOIN LATERAL (VALUES
    (stored.price_version, stored.unit_price, stored.quantity - contained_quantity),
    (least({BILLED_AS_PART}, stored.price_version), 0, contained_quantity)
) AS part (price_version, unit_price, quantity)
"""
_BRING_STRAGGLERS = f"""
INSERT INTO staged ({_COLUMNS})
SELECT {_STORED} FROM stragglers AS stored {_PARTS}
WHERE part.quantity <> 0 AND decision = 'hold' AND cause = %(stream)s
  AND (hold_until <= %(frontier)s OR (usage_lsn, meter) IN (SELECT held_lsn, meter FROM read_decisions))
"""

# A decision names a straggler by lsn, account and request: other usage now at that lsn is not what the person saw.
_DECIDE = """
CREATE TEMP TABLE decided ON COMMIT DROP AS
SELECT DISTINCT ON (usage_lsn, staged.meter)
       usage_lsn, staged.meter, coalesce(read_decisions.decision, hold_expires) AS decision, decided_lsn, decided_by,
       reason,
       coalesce(read_decisions.received_at, hold_until) AS decided_at
FROM staged LEFT JOIN read_decisions
  ON (read_decisions.held_lsn, read_decisions.meter, read_decisions.account, read_decisions.request_id)
   = (staged.usage_lsn, staged.meter, staged.account, staged.request_id)
 AND read_decisions.received_at < hold_until AND decided_lsn > usage_lsn
WHERE staged.decision = 'hold' AND (decided_lsn IS NOT NULL OR hold_until <= %(frontier)s)
ORDER BY usage_lsn, staged.meter, decided_lsn
"""
# A decision takes effect at its row of usage; an expired deadline after all rows of this batch.
_APPLY = """
UPDATE staged SET decision = decided.decision, is_correction = decided.decision IN ('correct', 'approve'),
                  first_lsn = coalesce(decided_lsn, %(position)s)
FROM decided WHERE (staged.usage_lsn, staged.meter) = (decided.usage_lsn, decided.meter)
"""

# What corrects them has waited with them, and what corrects that. Without a decision `inherit` gives it one.
_BRING_CORRECTING = f"""
INSERT INTO staged ({_COLUMNS})
WITH RECURSIVE correcting AS (
    SELECT usage_lsn, meter, unnest(corrects_lsns) AS corrected_lsn
    FROM stragglers WHERE decision = 'hold' AND corrects_lsns IS NOT NULL
), concerned AS (
    SELECT usage_lsn, meter FROM decided
    UNION
    SELECT correcting.usage_lsn, meter
    FROM concerned JOIN correcting USING (meter) WHERE corrected_lsn = concerned.usage_lsn
), held AS (
    SELECT stragglers.*
    FROM stragglers JOIN concerned USING (usage_lsn, meter) WHERE decision = 'hold' AND cause <> %(stream)s
)
SELECT {_STORED.replace("decision", "NULL")} FROM held AS stored {_PARTS} WHERE part.quantity <> 0
"""

_KEEP = """
UPDATE stragglers SET decided_lsn = decided.decided_lsn, decided_by = decided.decided_by, reason = decided.reason,
                      decided_at = decided.decided_at
FROM decided WHERE (stragglers.usage_lsn, stragglers.meter) = (decided.usage_lsn, decided.meter)
"""
_COUNT = "SELECT meter, decision, count(*) FROM decided GROUP BY 1, 2"


def let_small_go(cursor: psycopg.Cursor[Any]) -> None:
    """Let those rows of `staged` correct at once that are held above an amount which is not theirs."""
    cursor.execute(_LET_SMALL_GO)


def decide(cursor: psycopg.Cursor[Any], frontier: datetime | None, position: int) -> bool:
    """Move into `staged` what is decided now, with its decision, and its corrections, without one.

    `frontier`: all received before it is folded with this; `position`: of the next row of usage. Decisions are removed
    from `staged`. Returns whether anything was decided: then `keep_decided` follows, when stragglers are recorded.
    """
    causes = {"decided": UsageCause.DECIDED.value, "stream": UsageCause.STREAM.value}
    words = {**causes, "frontier": frontier, "position": position}
    found = cursor.execute(_ASK, words).fetchone()
    if found is None or not any(found):
        return False
    cursor.execute(_DECISIONS, words)
    cursor.execute(_REMOVE_DECISIONS, words)
    cursor.execute(_BRING_STRAGGLERS, words)
    cursor.execute(_DECIDE, words)
    cursor.execute("ANALYZE decided")
    cursor.execute(_APPLY, words)
    cursor.execute(_BRING_CORRECTING, words)
    return True


def keep_decided(cursor: psycopg.Cursor[Any]) -> Iterable[tuple[str, str, int]]:
    """Write down who decided, why and when. Returns (meter, decision, how many)."""
    cursor.execute(_KEEP)
    return cursor.execute(_COUNT).fetchall()


def is_due(cursor: psycopg.Cursor[Any], frontier: datetime | None) -> bool:
    """Whether something waits whose deadline F has reached."""
    found = cursor.execute(_IS_DUE, [frontier]).fetchone()
    return bool(found and found[0])
