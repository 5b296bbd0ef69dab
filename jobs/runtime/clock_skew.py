"""A driver's clock must agree with the database's: the log date and `logged_at` of every row are the driver's."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg

from jobs.runtime.errors import Refused
from metering.instants import Clock

LIMIT = timedelta(seconds=60)
CONNECT_TIMEOUT_SECONDS = 10


def skew(asked_at: datetime, database: datetime, answered_at: datetime) -> timedelta:
    """How far this clock is ahead of the database's, at least: the answer was given at some time between."""
    if database < asked_at:
        return asked_at - database
    return min(timedelta(0), answered_at - database)


def refuse_clock_skew(postgres_url: str, clock: Clock) -> None:
    """Raise Refused when `clock`, this machine's, is off the database's by more than `LIMIT`."""
    with psycopg.connect(postgres_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        asked_at = clock.now()
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        off = skew(asked_at, row[0], clock.now())
    if abs(off) > LIMIT:
        direction = "ahead of" if off > timedelta(0) else "behind"
        raise Refused(
            f"this machine's clock is {abs(off).total_seconds():.0f} s {direction} the database's, but rows are dated "
            f"by it (at most {LIMIT.total_seconds():.0f} s): set both clocks by NTP, then start again"
        )
