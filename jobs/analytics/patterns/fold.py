"""The patterns' part of a micro-batch of analytics, in the transaction that moves the position."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.decide import READ_BATCH, ReadBatch, decide
from jobs.analytics.patterns.declared import declare
from jobs.analytics.patterns.store import expire, store
from jobs.runtime.job import Fold

# Whether its pattern is declared or not; as long as late outcomes are decided by where it ends it stays.
_EXPIRE = """
DELETE FROM pattern_matches WHERE started_at < %(before)s AND NOT EXISTS (
    SELECT FROM unnest(%(patterns)s::integer[], %(read_from)s::timestamptz[]) AS declared (pattern_id, read_from)
    WHERE declared.pattern_id = pattern_matches.pattern_id AND started_at >= read_from
)
"""
# As `Declared.decides` has it: a match is due that may begin with an outcome which is not decided yet.
_IS_DUE = """
SELECT EXISTS (
    SELECT FROM (
        SELECT pattern_id, final_until, within,
               date_bin(greatest(interval '1 minute', within / 4), %(frontier)s - grace, timestamptz 'epoch') AS until
        FROM analytics_patterns,
             make_interval(secs => (definition ->> 'within_seconds')::int) AS within,
             make_interval(secs => (definition ->> 'grace_seconds')::int) AS grace
        WHERE is_declared
    ) AS declared
    WHERE until > final_until AND EXISTS (
        SELECT FROM pattern_outcomes
        WHERE pattern_outcomes.pattern_id = declared.pattern_id AND may_start
          AND event_time > final_until - within AND event_time <= until - within
    )
)
"""


def fold_patterns(
    cursor: psycopg.Cursor[Any], config: AnalyticsConfig, around: Fold, read_batch: ReadBatch = READ_BATCH
) -> None:
    """Store the outcomes that patterns look at, and append what that and the frontier change of final matches."""
    revised = timedelta(days=config.revise_days)
    read_from: dict[int, datetime] = {}
    for declared in declare(cursor, config.declared_patterns, around.frontier):
        changed = store(cursor, declared, revised)
        decided = decide(cursor, declared, changed, around.frontier, read_batch)
        if decided.final_until > declared.final_until:
            expire(cursor, decided, revised)
        read_from[decided.pattern_id] = decided.reads_from(revised)
    if around.frontier is not None:
        before = around.frontier - config.keeps
        cursor.execute(_EXPIRE, {"before": before, "patterns": [*read_from], "read_from": [*read_from.values()]})


def is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    """Whether a match may become final although no outcome came."""
    if around.frontier is None:
        return False
    row = cursor.execute(_IS_DUE, {"frontier": around.frontier}).fetchone()
    return row is not None and bool(row[0])
