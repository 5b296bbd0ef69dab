"""Sources: when each was last seen, and which of its sequence numbers are missing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard.backend import Backend
from dashboard.exact import with_plain
from dashboard.queries.feed import Feed, feed_of
from metering.vocabulary import Job

MAX_ROWS = 1_000
MAX_RANGES = 20
"""Of one source; a source with more holes has a fault that a list does not explain."""
ONCE = timedelta(minutes=1)
"""A source that was active for no longer than this was seen once."""
NO_LIMITS = {"silent_after": None, "retired_after": None, "once_retired_after": None, "unlisted": 0}


@dataclass(frozen=True)
class Source:
    """A source and its epoch. `missing` are sequence numbers between two that arrived; None: it sends no sequence."""

    source: str
    source_epoch: str
    account: str | None
    first_seen_at: datetime
    last_seen_at: datetime
    last_event_time: datetime | None
    unsequenced: bool
    arrived: int
    missing: int
    missing_ranges: tuple[str, ...]
    is_latest_epoch: bool
    heard_for: timedelta
    """From its first to its last event, in all its epochs."""

    @property
    def has_sequence(self) -> bool:
        """Whether its sequence numbers are kept."""
        return self.arrived > 0


@dataclass(frozen=True)
class Sources:
    """The longest silent last; `newest` is when any source was last seen.

    Silence is measured at ingestion's frontier, as its alert does: while nothing can be read, no source is known to be
    silent. A source that was silent for `retired_after` is retired.
    """

    feed: Feed
    sources: tuple[Source, ...]
    is_cut: bool
    newest: datetime | None
    silent_after: timedelta | None
    retired_after: timedelta | None
    once_retired_after: timedelta | None
    unlisted: int
    """Events, since ingestion's start, of sources that are not listed because too many new ones came in an hour."""

    def is_silent(self, source: Source) -> bool:
        """Whether nothing came from the source for too long, in its latest epoch."""
        return source.is_latest_epoch and self._older(source, self.silent_after) and not self.is_retired(source)

    def is_retired(self, source: Source) -> bool:
        """Whether the source has been silent for so long that it is retired."""
        is_once = source.heard_for <= ONCE
        return self._older(source, self.retired_after) or (is_once and self._older(source, self.once_retired_after))

    def _older(self, source: Source, limit: timedelta | None) -> bool:
        frontier = self.feed.frontier
        return frontier is not None and limit is not None and source.last_seen_at < frontier - limit


_SOURCES = """
    SELECT source, source_epoch, account, first_seen_at, last_seen_at, last_event_time, unsequenced,
           (SELECT coalesce(sum(upper(part) - lower(part)), 0) FROM unnest(sequences) AS part) AS arrived,
           (SELECT coalesce(sum(upper(part) - lower(part)), 0) FROM unnest(holes) AS part) AS missing,
           ARRAY(
               SELECT CASE WHEN upper(part) - lower(part) = 1 THEN lower(part)::text
                           ELSE lower(part) || ' to ' || upper(part) - 1 END
               FROM unnest(holes) AS part ORDER BY part LIMIT %(ranges)s
           ) AS missing_ranges,
           last_seen_at = max(last_seen_at) OVER (PARTITION BY source) AS is_latest_epoch,
           max(last_seen_at) OVER (PARTITION BY source) - min(first_seen_at) OVER (PARTITION BY source) AS heard_for
    FROM sources CROSS JOIN LATERAL (
        SELECT int8multirange(range_merge(sequences)) - sequences AS holes
    ) AS missing
    ORDER BY last_seen_at DESC, source, source_epoch LIMIT %(limit)s
"""

_LIMITS = """
    SELECT make_interval(secs => (config ->> 'source_silent_after_seconds')::float8) AS silent_after,
           make_interval(secs => (config ->> 'source_retired_after_seconds')::float8) AS retired_after,
           make_interval(secs => (config ->> 'source_seen_once_retired_after_seconds')::float8) AS once_retired_after,
           coalesce((progress ->> 'unlisted_source_events')::bigint, 0) AS unlisted
    FROM jobs WHERE job = 'ingestion'
"""


def read_sources(backend: Backend) -> Sources:
    """Every source that ingestion has seen."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.INGESTION)
        rows = cursor.execute(_SOURCES, {"ranges": MAX_RANGES, "limit": MAX_ROWS + 1}).fetchall()
        limits = cursor.execute(_LIMITS).fetchone() or NO_LIMITS
    sources = tuple(
        Source(**{**with_plain(row, "arrived", "missing"), "missing_ranges": tuple(row["missing_ranges"])})
        for row in rows[:MAX_ROWS]
    )
    newest = sources[0].last_seen_at if sources else None
    return Sources(feed=feed, sources=sources, is_cut=len(rows) > MAX_ROWS, newest=newest, **limits)
