"""The application that produces a panel's data: its last report, and how far it has certainly read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg

_FEED = """
    SELECT clock_timestamp() AS read_at, %(job)s AS job, jobs.state, jobs.updated_at AS reported_at,
           coalesce(positions.frontier, (jobs.progress ->> 'frontier')::timestamptz) AS frontier,
           make_interval(secs => (jobs.config ->> 'grace_seconds')::float8) AS grace,
           make_interval(secs => (jobs.config ->> 'session_gap_seconds')::float8) AS session_gap,
           (SELECT coalesce(jsonb_object_agg(meter, declaration -> 'grace_seconds' ORDER BY meter), '{}')
            FROM jsonb_each(jobs.config -> 'meters') AS declared (meter, declaration)
            WHERE declaration -> 'grace_seconds' NOT IN ('null', jobs.config -> 'grace_seconds')) AS meter_graces
    FROM (VALUES (%(job)s)) AS wanted (job)
    LEFT JOIN jobs USING (job)
    LEFT JOIN positions USING (job)
"""


@dataclass(frozen=True)
class Feed:
    """`read_at` is the database's clock. `reported_at` is None when the job never ran, `frontier` until it knew one.

    `grace` is that of all meters but those in `meter_graces`.
    """

    read_at: datetime
    job: str
    state: str | None
    reported_at: datetime | None
    frontier: datetime | None
    grace: timedelta | None
    session_gap: timedelta | None
    meter_graces: Mapping[str, timedelta] = field(default_factory=dict)


def feed_of(cursor: psycopg.Cursor[dict[str, Any]], job: str) -> Feed:
    """The feed as the caller's transaction sees it: with the rows that it explains."""
    row = cursor.execute(_FEED, {"job": job}).fetchall()[0]
    graces = {meter: timedelta(seconds=seconds) for meter, seconds in row.pop("meter_graces").items()}
    return Feed(**row, meter_graces=graces)
