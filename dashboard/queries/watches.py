"""Watches, and their hits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard.backend import Backend
from dashboard.queries.feed import Feed, feed_of
from jobs.analytics.watches.store import is_run
from metering.vocabulary import Job

MAX_WATCHES = 500
MAX_HITS = 500
# Of a watch of no single account the hours are known only of all accounts together.
_WATCHES = """
    SELECT name, condition, watches.account, first_position IS NOT NULL AS is_running,
           coalesce(counted.hits, 0) AS hits, counted.last_hour, added_by, added_at
    FROM watches LEFT JOIN (
        SELECT watch_id, sum(hits)::bigint AS hits, max(hour) AS last_hour
        FROM watch_hours WHERE hits > 0 AND hour >= %(since)s GROUP BY watch_id
    ) AS counted USING (watch_id)
    WHERE removed_at IS NULL ORDER BY counted.hits DESC NULLS LAST, name LIMIT %(watches)s
"""
_HITS = """
    SELECT event_time, name, h.account, request_id
    FROM watch_hits AS h JOIN watches USING (watch_id)
    WHERE removed_at IS NULL AND net > 0 AND hour >= %(since)s
      AND (%(account)s::text IS NULL OR h.account = %(account)s)
    ORDER BY hour DESC, event_time DESC, name, h.request_lsn, h.completion_lsn LIMIT %(hits)s
"""


@dataclass(frozen=True)
class HitFilter:
    """Hits of the last `hours`, whole hours of event time; of one account or all."""

    hours: int = 24
    account: str | None = None


@dataclass(frozen=True)
class Watch:
    """`hits` are of all accounts that its condition may take; `is_running`: analytics has begun with it."""

    name: str
    condition: str
    account: str | None
    is_running: bool
    hits: int
    last_hour: datetime | None
    added_by: str
    added_at: datetime


@dataclass(frozen=True)
class Hit:
    """One of the first 100 hits of a watch in its hour."""

    event_time: datetime
    name: str
    account: str | None
    request_id: str | None


@dataclass(frozen=True)
class Hits:
    """`watches` has those with most hits first, `hits` the latest; `are_run`: analytics was started with them, and is
    not off.
    """

    feed: Feed
    are_run: bool
    watches: tuple[Watch, ...]
    hits: tuple[Hit, ...]
    is_cut: bool


def read_hits(backend: Backend, chosen: HitFilter) -> Hits:
    """The watches that are not removed and what they hit, as far as the viewer may see either."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.ANALYTICS)
        since = (feed.read_at - timedelta(hours=chosen.hours)).replace(minute=0, second=0, microsecond=0)
        parameters = {
            "since": since,
            "account": chosen.account,
            "watches": MAX_WATCHES + 1,
            "hits": MAX_HITS + 1,
        }
        watches = cursor.execute(_WATCHES, parameters).fetchall()
        hits = cursor.execute(_HITS, parameters).fetchall()
        are_run = is_run(cursor.connection)
    return Hits(
        feed,
        are_run,
        tuple(Watch(**row) for row in watches[:MAX_WATCHES]),
        tuple(Hit(**row) for row in hits[:MAX_HITS]),
        len(watches) > MAX_WATCHES or len(hits) > MAX_HITS,
    )
