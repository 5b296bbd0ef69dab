"""The patterns' part of a micro-batch of analytics, in the transaction that moves the position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, cast

import psycopg

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.blocks import Block
from jobs.analytics.patterns.bursts import decide_bursts
from jobs.analytics.patterns.decide import READ_BATCH, Deciding, ReadBatch, decide
from jobs.analytics.patterns.declared import Declared, declare, reads_from, revises_from
from jobs.analytics.patterns.reading import Blocks
from jobs.analytics.patterns.store import Stored, changed, expire, keys_to_revise, store
from jobs.runtime.job import Fold
from metering.patterns.burst import AnyPattern, Burst
from metering.patterns.pattern import Pattern

# Whether its pattern is declared or not; as long as late outcomes are decided by where it ends it stays. All versions
# go at once: those of a burst may begin at different instants, and an earlier one that is left would stand again.
_EXPIRE = """
DELETE FROM pattern_matches AS changes USING (
    SELECT DISTINCT pattern_id, match_id FROM pattern_matches
    WHERE started_at < %(before)s AND NOT (
        pattern_id = ANY (%(patterns)s::integer[]) AND started_at >= %(read_from)s::timestamptz
    )
) AS old
WHERE (changes.pattern_id, changes.match_id) = (old.pattern_id, old.match_id)
"""
# As `Declared.decides` has it: a match is due that may begin with an outcome which is not decided yet. Of a burst all
# outcomes of a window are decided at its end.
_IS_DUE = """
SELECT EXISTS (
    SELECT FROM (
        SELECT final_until, until,
               final_until - CASE WHEN is_burst THEN interval '0' ELSE within END AS decided,
               until - CASE WHEN is_burst THEN interval '1 minute' ELSE within END AS last
        FROM analytics_patterns,
             make_interval(secs => (definition ->> 'within_seconds')::int) AS within,
             make_interval(secs => (definition ->> 'grace_seconds')::int) AS grace,
             LATERAL (SELECT definition ? 'over_seconds' AS is_burst) AS kind,
             date_bin(CASE WHEN is_burst THEN within ELSE greatest(interval '1 minute', within / 4) END,
                      %(frontier)s - grace, timestamptz 'epoch') AS until
        WHERE is_declared
    ) AS declared
    WHERE until > final_until AND EXISTS (
        SELECT FROM pattern_outcomes WHERE minute > decided - interval '1 minute' AND minute <= last
    )
)
"""


def fold_patterns(
    cursor: psycopg.Cursor[Any],
    config: AnalyticsConfig,
    around: Fold,
    of_driver: Iterable[Block] = (),
    read_batch: ReadBatch = READ_BATCH,
) -> None:
    """Store the outcomes that patterns look at, and append what that and the frontier change of final matches."""
    revised = timedelta(days=config.revise_days)
    declared = declare(cursor, config.declared_patterns, around.frontier)
    if declared:
        deciding = Deciding(
            cursor,
            Blocks(cursor, max_outcomes=read_batch.opened, batch_blocks=read_batch.blocks),
            around.frontier,
            read_batch,
        )
        stored = store(cursor, revises_from(declared, revised), of_driver, read_batch.blocks)
        declared = _decided(deciding, declared, revised, stored)
    if around.frontier is not None:
        read_from = reads_from(declared, revised) if declared else None
        before = around.frontier - config.keeps
        numbers = [declaration.pattern_id for declaration in declared]
        cursor.execute(_EXPIRE, {"before": before, "patterns": numbers, "read_from": read_from})


def _decided(
    around: Deciding, declared: Sequence[Declared[AnyPattern]], revised: timedelta, stored: Stored
) -> Sequence[Declared[AnyPattern]]:
    found = [_decide(around, declaration, stored) for declaration in declared]
    if found != declared:
        expire(around.cursor, reads_from(found, revised))
    return found


def _decide(around: Deciding, declared: Declared[AnyPattern], stored: Stored) -> Declared[AnyPattern]:
    came, gone = changed(declared, stored, around.blocks)
    if isinstance(declared.pattern, Burst):
        return decide_bursts(around, cast("Declared[Burst]", declared), came, gone)
    of = cast("Declared[Pattern]", declared)
    return decide(around, of, keys_to_revise(around.cursor, of, came, gone))


def is_match_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    """Whether a match may become final although no outcome came."""
    if around.frontier is None:
        return False
    row = cursor.execute(_IS_DUE, {"frontier": around.frontier}).fetchone()
    return row is not None and bool(row[0])
