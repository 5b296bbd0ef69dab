"""Staged rows → `pattern_outcomes`: those that came, went or changed, and whose final matches they revise."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from jobs.analytics.patterns.conditions import may_start
from jobs.analytics.patterns.declared import Declared
from jobs.analytics.patterns.rows import LSN, STAGED_AS

_OF_PATTERN = sql.SQL("""
    SELECT DISTINCT ON (keys, event_time, lsn) * FROM (
        SELECT window_start AS event_time, (measures::jsonb ->> {lsn})::bigint AS lsn, account, keys::jsonb AS keys,
               measures::jsonb - {lsn} AS outcome
        FROM staged WHERE view = %(view)s AND version = %(version)s AND window_start >= %(revises_from)s
    ) AS of_pattern ORDER BY keys, event_time, lsn
""").format(lsn=sql.Literal(LSN))
_CHANGED = sql.SQL("""
SELECT keys_digest, min(event_time) FROM changed WHERE event_time <= %(final_until)s GROUP BY keys_digest
""")
# Of a minute that is made again all outcomes are staged: what is not among them was taken back.
_GONE = """
WITH added AS ({added}), changed AS (
    DELETE FROM pattern_outcomes AS stored USING staged AS rebuilt
    WHERE rebuilt.view = '' AND stored.event_time >= rebuilt.window_start
      AND stored.event_time < rebuilt.window_start + interval '1 minute'
      AND stored.pattern_id = %(pattern_id)s AND stored.event_time >= %(revises_from)s
      AND NOT EXISTS (
          SELECT FROM added WHERE added.event_time = stored.event_time AND added.lsn = stored.lsn
                              AND added.keys = stored.keys AND added.outcome = stored.outcome
      )
    RETURNING stored.keys_digest, stored.event_time
) {changed}
"""
_ADDED = """
WITH added AS ({added}), changed AS (
    INSERT INTO pattern_outcomes AS stored (pattern_id, event_time, lsn, account, keys, outcome, may_start)
    SELECT %(pattern_id)s, event_time, lsn, account, keys, outcome, {may_start} FROM added
    ON CONFLICT (pattern_id, keys_digest, event_time, lsn)
    DO UPDATE SET outcome = excluded.outcome, may_start = excluded.may_start WHERE stored.outcome <> excluded.outcome
    RETURNING keys_digest, event_time
) {changed}
"""
_IS_MADE_AGAIN = "SELECT EXISTS (SELECT FROM staged WHERE view = '')"
_EXPIRE = "DELETE FROM pattern_outcomes WHERE pattern_id = %s AND event_time < %s"


def store(cursor: psycopg.Cursor[Any], declared: Declared, revised: timedelta) -> Mapping[bytes, datetime]:
    """Store what is staged for a pattern. By key, the first event time at or before `final_until` that changed.

    Outcomes from before what is still revised (`Declared.revises_from`) change nothing.
    """
    values = {
        "pattern_id": declared.pattern_id,
        "view": STAGED_AS + declared.pattern.name,
        "version": declared.pattern.version,
        "revises_from": declared.revises_from(revised),
        "final_until": declared.final_until,
    }
    found: dict[bytes, datetime] = {}
    parts = {"added": _OF_PATTERN, "changed": _CHANGED, "may_start": may_start(declared.pattern)}
    row = cursor.execute(_IS_MADE_AGAIN).fetchone()
    for statement in (_GONE, _ADDED) if row is not None and row[0] else (_ADDED,):
        for key, first in cursor.execute(sql.SQL(statement).format(**parts), values).fetchall():
            found[key] = min(first, found.get(key, first))
    return found


def expire(cursor: psycopg.Cursor[Any], declared: Declared, revised: timedelta) -> None:
    """Remove outcomes that no match reads any more that may still be revised."""
    cursor.execute(_EXPIRE, [declared.pattern_id, declared.reads_from(revised)])
