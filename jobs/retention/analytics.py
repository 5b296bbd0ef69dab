"""Retention of what views, patterns and watches have found while analytics is off: while it runs it does so itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg

from jobs.analytics.config import AnalyticsConfig
from jobs.retention.days import Removed
from metering.reports import OFF_AFTER, Phase

KEEP_DAYS = AnalyticsConfig().keep_days
"""Where analytics has stored no configuration."""
# A driver that starts meanwhile waits for the lock, so it folds what is left.
_OFF = """
SELECT (config ->> 'keep_days')::int, state = %(stopped)s OR updated_at <= clock_timestamp() - %(off_after)s
FROM jobs WHERE job = 'analytics' FOR UPDATE
"""
# Late outcomes may still come when it starts again: minutes of which some were removed would lack the others. What is
# declared later begins behind the last outcome that was read (UNREAD_SINCE), which what is withdrawn must not forget.
_PANES = """
WITH removed AS (DELETE FROM analytics_panes WHERE window_start < %(before)s RETURNING view_id, window_start),
     latest AS (SELECT view_id, max(window_start) + interval '1 minute' AS minute FROM removed GROUP BY view_id),
     began AS (
        UPDATE analytics_views AS v SET since = greatest(since, CASE WHEN is_declared THEN %(before)s ELSE minute END)
        FROM latest WHERE v.view_id = latest.view_id
     )
SELECT count(*) FROM removed
"""
_OUTCOMES = """
WITH removed AS (DELETE FROM pattern_outcomes WHERE minute < %(before)s RETURNING minute),
     latest AS (SELECT max(minute) + interval '1 minute' AS minute FROM removed HAVING count(*) > 0),
     began AS (
        UPDATE analytics_patterns SET since = greatest(since, CASE WHEN is_declared THEN %(before)s ELSE minute END)
        FROM latest
     )
SELECT count(*) FROM removed
"""
# When analytics starts again it reads the rest of such hours, and counts them from 0. The steps that were called
# about stay until analytics removes it, without the requests. Nobody is called about a watch that was removed.
_CALLS = """
WITH removed AS (
    DELETE FROM watch_calls USING watches
    WHERE watches.watch_id = watch_calls.watch_id AND removed_at IS NOT NULL AND hour < %(before)s RETURNING 1
), emptied AS (
    UPDATE watch_calls SET first = '[]' FROM watches
    WHERE watches.watch_id = watch_calls.watch_id AND removed_at IS NULL AND hour < %(before)s AND first <> '[]'
    RETURNING 1
)
SELECT (SELECT count(*) FROM removed) + (SELECT count(*) FROM emptied)
"""
# All versions at once: those of a burst may begin at different instants, and an earlier one would stand again.
_MATCHES = """
WITH old AS (SELECT DISTINCT pattern_id, match_id FROM pattern_matches WHERE started_at < %(before)s),
     removed AS (DELETE FROM pattern_matches USING old
        WHERE (pattern_matches.pattern_id, pattern_matches.match_id) = (old.pattern_id, old.match_id) RETURNING 1)
SELECT count(*) FROM removed
"""
_REMOVE = "WITH removed AS (DELETE FROM {table} WHERE {column} < %(before)s RETURNING 1) SELECT count(*) FROM removed"
_STEPS = {
    "analytics_panes": _PANES,
    "pattern_outcomes": _OUTCOMES,
    "pattern_matches": _MATCHES,
    **{table: _REMOVE.format(table=table, column="hour") for table in ("watch_hits", "watch_hours")},
    "watch_calls": _CALLS,
}


def retain_analytics(connection: psycopg.Connection[Any], today: date) -> Iterator[Removed]:
    """Remove what is older than `keep_days` of analytics before today, in one transaction; nothing where it runs.

    Views and patterns that are still declared begin with what is left. Of calls about watches that are not removed only
    the requests that they named go.
    """
    with connection.transaction():
        row = connection.execute(_OFF, {"stopped": Phase.STOPPED, "off_after": OFF_AFTER}).fetchone()
        keep_days, is_off = row or (None, True)
        before = today - timedelta(days=KEEP_DAYS if keep_days is None else keep_days)
        if not is_off:
            return
        midnight = datetime.combine(before, time(), UTC)
        found = {table: connection.execute(step, {"before": midnight}).fetchone() for table, step in _STEPS.items()}
    for table, counted in found.items():
        assert counted is not None
        yield Removed(table, before, counted[0])
