"""Patterns and their matches, as analytics recorded them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database, select
from metering.once_per import duration_of

PATTERN_COLUMNS = ("pattern", "partition_by", "look_for", "within", "grace", "since", "final_until", "matches")
MATCH_COLUMNS = (
    *("started_at", "ended_at", "pattern", "match", "version", "is_retracted", "keys", "outcomes", "measures"),
    *("changed_at", "frontier"),
)
MATCH_KEY = ("started_at", "match", "version")
"""What matches of a pattern are ordered by in pages."""
_PATTERNS = """
    SELECT pattern, ARRAY(SELECT jsonb_array_elements_text(definition -> 'partition_by')) AS partition_by,
           definition ->> 'pattern' AS look_for, (definition ->> 'within_seconds')::int AS within,
           (definition ->> 'grace_seconds')::int AS grace, since,
           nullif(final_until, 'epoch') AS final_until, (
               SELECT count(*) FROM (
                   SELECT DISTINCT ON (match_id) is_retracted FROM pattern_matches
                   WHERE pattern_matches.pattern_id = analytics_patterns.pattern_id ORDER BY match_id, version DESC
               ) AS last WHERE NOT is_retracted
           ) AS matches
    FROM analytics_patterns WHERE is_declared ORDER BY pattern
"""
# Versions of a burst may begin at different instants, some of them outside of the period: of all versions the last
# decides which matches stand, and with one version all belong to it, else an old one would look like the last.
_MATCHES = """
    SELECT started_at, ended_at, pattern, match_id AS match, version, is_retracted, keys, outcomes, measures,
           changed_at, frontier
    FROM (
        SELECT changes.*, analytics_patterns.pattern,
               changes.version = max(changes.version) OVER (PARTITION BY pattern_id, match_id) AS is_last
        FROM pattern_matches AS changes JOIN analytics_patterns USING (pattern_id)
        WHERE (%(pattern)s::text IS NULL OR analytics_patterns.pattern = %(pattern)s)
          AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
          AND (pattern_id, match_id) IN (SELECT pattern_id, match_id FROM pattern_matches WHERE {within})
    ) AS changes
    WHERE %(all_versions)s OR is_last AND NOT is_retracted AND {within}
    ORDER BY started_at DESC, pattern, match_id, version DESC
""".format(
    within="(%(start)s::timestamptz IS NULL OR started_at >= %(start)s)"
    " AND (%(end)s::timestamptz IS NULL OR started_at < %(end)s)"
)


_IS_KNOWN = "SELECT EXISTS (SELECT FROM analytics_patterns WHERE pattern = %(pattern)s) AS is_known"


_IS_BY_ACCOUNT = """
    SELECT bool_or(definition -> 'partition_by' ? 'account') AS is_by_account FROM analytics_patterns
    WHERE pattern = %(pattern)s
"""


class UnknownPattern(ValueError):
    """Analytics has never looked for a pattern of this name."""


@dataclass(frozen=True)
class Matches:
    """Which matches are asked for: of a pattern and of accounts (None and empty: all), by their start, or each change
    of them.
    """

    pattern: str | None = None
    accounts: Sequence[str] = ()
    start: datetime | None = None
    end: datetime | None = None
    all_versions: bool = False


def pattern_rows(database: Database) -> Iterator[dict[str, Any]]:
    """Rows with the keys PATTERN_COLUMNS: what is declared, up to when its matches are final, and how many stand."""
    for row in select(database, _PATTERNS, {}):
        durations = {name: duration_of(row[name]) for name in ("within", "grace")}
        yield {**row, "partition_by": ", ".join(row["partition_by"]), **durations}


def is_by_account(database: Database, pattern: str) -> bool:
    """Whether its matches are each of one account."""
    row = database.execute(_IS_BY_ACCOUNT, {"pattern": pattern}).fetchone()
    return bool(row and row["is_by_account"])


def match_rows(database: Database, selection: Matches, page: Page | None = None) -> Iterator[dict[str, Any]]:
    """Rows with the keys MATCH_COLUMNS: the matches that stand, or all versions of all matches.

    The latest first; a page has the earliest first.

    Raises UnknownPattern; one that is not declared any more is known.
    """
    parameters: Mapping[str, Any] = {
        "pattern": selection.pattern,
        "accounts": list(selection.accounts) or None,
        "start": selection.start,
        "end": selection.end,
        "all_versions": selection.all_versions,
    }
    if selection.pattern is not None:
        row = database.execute(_IS_KNOWN, parameters).fetchone()
        if not (row and row["is_known"]):
            raise UnknownPattern(f"there is no pattern {selection.pattern}: `weir pattern list` shows all")
    statement, more = paged(_MATCHES, MATCH_KEY, page)
    return select(database, statement, {**parameters, **more})
