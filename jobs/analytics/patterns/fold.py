"""The patterns' part of a micro-batch of analytics, in the transaction that moves the position."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.decide import READ_BATCH, STARTS, ReadBatch, decide
from jobs.analytics.patterns.declared import declare
from jobs.analytics.patterns.store import expire, store
from jobs.runtime.job import Fold

_EXPIRE = "DELETE FROM pattern_matches WHERE started_at < %s"
# As `Declared.decides` has it: a match is due that may begin with an outcome which is not decided yet.
_IS_DUE = f"""
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
        SELECT FROM {STARTS}
        WHERE starts.pattern_id = declared.pattern_id
          AND starts_at > final_until - within AND starts_at <= until - within
    )
)
"""


def fold_patterns(
    cursor: psycopg.Cursor[Any], config: AnalyticsConfig, around: Fold, read_batch: ReadBatch = READ_BATCH
) -> None:
    """Store the outcomes that patterns look at, and append what that and the frontier change of final matches."""
    revised = timedelta(days=config.revise_days)
    for declared in declare(cursor, config.declared_patterns, around.frontier):
        changed = store(cursor, declared, revised)
        decided = decide(cursor, declared, changed, around.frontier, read_batch)
        if decided.final_until > declared.final_until:
            expire(cursor, decided, revised)
    if around.frontier is not None and config.patterns:
        cursor.execute(_EXPIRE, [around.frontier - config.keeps])


def is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    """Whether a match may become final although no outcome came."""
    if around.frontier is None:
        return False
    row = cursor.execute(_IS_DUE, {"frontier": around.frontier}).fetchone()
    return row is not None and bool(row[0])
