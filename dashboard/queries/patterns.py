"""Matches of patterns: those that hold, and those that were retracted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from dashboard.backend import Backend
from dashboard.queries.feed import Feed, feed_of
from metering.vocabulary import Job

MAX_ROWS = 500
ACCOUNT = "account"
_PATTERNS = """
    SELECT pattern, ARRAY(SELECT jsonb_array_elements_text(definition -> 'partition_by')) AS partition_by,
           definition ->> 'pattern' AS look_for, nullif(final_until, 'epoch') AS final_until
    FROM analytics_patterns WHERE is_declared ORDER BY pattern
"""
# Versions of a burst may begin at different instants, some of them before `since`.
_OF_MATCH = """
FROM pattern_matches AS of_match
WHERE (of_match.pattern_id, of_match.match_id) = (changes.pattern_id, changes.match_id)
"""
_CHOSEN = f"""
    FROM (
        SELECT analytics_patterns.pattern, changes.*,
               changes.version = (SELECT min(of_match.version) {_OF_MATCH}) AS is_first,
               changes.version = (SELECT max(of_match.version) {_OF_MATCH}) AS is_last
        FROM pattern_matches AS changes JOIN analytics_patterns USING (pattern_id)
        WHERE started_at >= %(since)s AND (%(account)s::text IS NULL OR account = %(account)s)
    ) AS changes
"""
_COUNTS = f"""
    SELECT pattern, count(*) FILTER (WHERE NOT is_retracted) AS standing,
           count(*) FILTER (WHERE is_retracted) AS retracted
    {_CHOSEN} WHERE is_last GROUP BY pattern
"""
_MATCHES = f"""
    SELECT pattern, match_id AS match, version, is_retracted, is_first, is_last, keys, outcomes, measures, started_at,
           ended_at, changed_at
    {_CHOSEN} WHERE is_last OR %(all_versions)s
    ORDER BY started_at DESC, pattern, match_id, version DESC LIMIT %(limit)s
"""


@dataclass(frozen=True)
class MatchFilter:
    """Matches that began in the last `hours`, of one account or all; each as it is, or each change of it."""

    hours: int = 24
    account: str | None = None
    all_versions: bool = False


@dataclass(frozen=True)
class DeclaredPattern:
    """`final_until`: matches whose time ends before are final. `standing` and `retracted` count what was chosen."""

    pattern: str
    partition_by: tuple[str, ...]
    look_for: str
    final_until: datetime | None
    standing: int
    retracted: int


@dataclass(frozen=True)
class Match:
    """A version of a match; `is_first` and `is_last` of its stored versions, of which the last holds."""

    pattern: str
    match: str
    version: int
    is_retracted: bool
    is_first: bool
    is_last: bool
    keys: Mapping[str, Any]
    outcomes: int
    measures: Mapping[str, Any]
    started_at: datetime
    ended_at: datetime
    changed_at: datetime


@dataclass(frozen=True)
class Matches:
    """`patterns` are those declared that may have matches that the viewer sees; `matches` has the latest first."""

    feed: Feed
    patterns: tuple[DeclaredPattern, ...]
    matches: tuple[Match, ...]
    is_cut: bool


def read_matches(backend: Backend, chosen: MatchFilter) -> Matches:
    """The declared patterns, and what matched."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.ANALYTICS)
        parameters = {
            "since": feed.read_at - timedelta(hours=chosen.hours),
            "account": chosen.account,
            "all_versions": chosen.all_versions,
            "limit": MAX_ROWS + 1,
        }
        rows = cursor.execute(_MATCHES, parameters).fetchall()
        patterns = _patterns(cursor, parameters, sees_all=backend.scope.is_all)
    return Matches(feed, patterns, tuple(Match(**row) for row in rows[:MAX_ROWS]), len(rows) > MAX_ROWS)


def _patterns(
    cursor: psycopg.Cursor[dict[str, Any]], parameters: Mapping[str, Any], *, sees_all: bool
) -> tuple[DeclaredPattern, ...]:
    counts = {row.pop("pattern"): row for row in cursor.execute(_COUNTS, parameters).fetchall()}
    nothing = {"standing": 0, "retracted": 0}
    # Matches of no single account are for viewers of all of them.
    return tuple(
        DeclaredPattern(**{**row, "partition_by": tuple(row["partition_by"])}, **counts.get(row["pattern"], nothing))
        for row in cursor.execute(_PATTERNS).fetchall()
        if sees_all or ACCOUNT in row["partition_by"]
    )
