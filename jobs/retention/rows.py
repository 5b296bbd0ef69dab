"""Retention of Postgres' rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg

from jobs.retention.days import Removed, Retention, first_retained, remembered_days

# The last batch of a job stays, however old.
_BATCHES = """
DELETE FROM batches WHERE committed_at < %(before)s
    AND first_position < (SELECT max(first_position) FROM batches AS newest WHERE newest.job = batches.job)
"""
_EXITS = "DELETE FROM exits WHERE ended_at < %(before)s"
# The journal has them as dead letters.
_ISOLATED = "DELETE FROM isolated_records WHERE journalled_at < %(before)s"
# Silence is measured at the frontier, as everywhere. A source that comes back at this moment is left alone.
_SOURCES = """
DELETE FROM sources WHERE (source, source_epoch) IN (
    SELECT source, source_epoch FROM sources
    WHERE last_seen_at < %(before)s AND last_seen_at < (
        SELECT (progress ->> 'frontier')::timestamptz
               - make_interval(secs => (config ->> 'source_retired_after_seconds')::float8)
        FROM jobs WHERE job = 'ingestion'
    )
    ORDER BY source, source_epoch FOR UPDATE SKIP LOCKED
)
"""
_SESSIONS = "DELETE FROM sessions WHERE retracted_at < %(before)s"
# Of each threshold the last version stays: it says what was decided, so that it is not decided again.
_THRESHOLDS = """
DELETE FROM threshold_changes AS old WHERE changed_at < %(before)s AND EXISTS (
    SELECT FROM threshold_changes AS newer
    WHERE (newer.account, newer.first_day, newer.period, newer.meter, newer.currency, newer.model,
           newer.dimension, newer.dimension_value, newer.threshold)
        = (old.account, old.first_day, old.period, old.meter, old.currency, old.model,
           old.dimension, old.dimension_value, old.threshold)
      AND newer.version > old.version
)
"""
# A token lives for a day at most. The row of an account stays: another would begin at 1 again, below tokens that hold.
_INVALIDATED_TOKENS = "DELETE FROM portal_invalidations WHERE token_id <> '' AND invalidated_at < %(before)s"
INVALIDATIONS_DAYS = 2


def retain_rows(connection: psycopg.Connection[Any], retention: Retention, today: date) -> Iterator[Removed]:
    """Remove what is too old from Postgres, one transaction per table; `connection` commits by itself."""
    remembered = remembered_days(connection)
    steps = (
        ("batches", _BATCHES, _days_before(today, retention.batches_days)),
        ("exits", _EXITS, _days_before(today, retention.exits_days)),
        ("isolated_records", _ISOLATED, _days_before(today, retention.isolated_records_days)),
        ("sources", _SOURCES, _days_before(today, _at_least(remembered, retention.retired_sources_days))),
        ("threshold_changes", _THRESHOLDS, _days_before(today, retention.threshold_changes_days)),
        ("portal_invalidations", _INVALIDATED_TOKENS, _days_before(today, INVALIDATIONS_DAYS)),
        (
            "sessions",
            _SESSIONS,
            None if (kept := retention.retracted_sessions_days) is None else first_retained(today, kept),
        ),
    )
    for table, statement, before in steps:
        if before is not None:
            midnight = datetime.combine(before, time(), UTC)
            yield Removed(table, before, connection.execute(statement, {"before": midnight}).rowcount)


def _days_before(today: date, days: int | None) -> date | None:
    return None if days is None else today - timedelta(days=days)


def _at_least(remembered: int, days: int | None) -> int | None:
    return None if days is None else max(remembered, days)
