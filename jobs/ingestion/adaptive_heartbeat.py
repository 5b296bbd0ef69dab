"""The adaptive heartbeat: fast while something is open that only the frontier closes, else once a minute.

Windows, waiting requests and sessions can be open.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl
import psycopg

from jobs.runtime.kafka.heartbeat import Heartbeat
from jobs.runtime.postgres.ownership import Ownership
from metering.vocabulary import Family

# An event that its readers have not got yet will open something, and so will an outcome that billing has not got. What
# is not known counts as open.
_REACHED = """
SELECT closed_usage.closed_until, closed_sessions.closed_before
FROM closed_usage CROSS JOIN closed_sessions
CROSS JOIN (SELECT progress FROM jobs WHERE job = 'joins') AS joins
WHERE closed_usage.frontier > %(last)s AND closed_sessions.frontier > %(last)s
  AND (joins.progress ->> 'frontier')::timestamptz > %(last)s
  AND closed_usage.frontier >= (joins.progress ->> 'frontier')::timestamptz
  AND (joins.progress ->> 'waiting')::bigint = 0
  AND closed_usage.closed_until IS NOT NULL AND closed_sessions.closed_before IS NOT NULL
"""
_OPEN = """
SELECT EXISTS (SELECT FROM usage_windows WHERE window_start > %(closed_until)s - interval '1 minute')
    OR EXISTS (SELECT FROM sessions WHERE retracted_at IS NULL AND session_end >= %(closed_before)s)
"""


def is_anything_open(connection: psycopg.Connection[Any], last_received_at: datetime) -> bool:
    """Whether something is open once all that was received up to `last_received_at` has been taken up.

    Two statements, because the planner finds the index only for values that it sees.
    """
    reached = connection.execute(_REACHED, {"last": last_received_at}).fetchone()
    if reached is None:
        return True
    closed = {"closed_until": reached[0], "closed_before": reached[1]}
    found = connection.execute(_OPEN, closed, prepare=False).fetchone()
    return found is None or bool(found[0])


class AdaptiveHeartbeat:
    """Follows what a driver commits, and slows its heartbeat down or speeds it up."""

    def __init__(self, heartbeat: Heartbeat, ownership: Ownership) -> None:
        self._heartbeat = heartbeat
        self._ownership = ownership
        # What was there before the start may have opened something, too: its readers must get past the first batch.
        self._last_received_at: datetime | None = None

    def take(self, rows: pl.DataFrame) -> None:
        """Committed rows of the journal (family, received_at): any but a heartbeat may have opened something."""
        is_other = rows.select(pl.col("family").ne_missing(Family.HEARTBEAT.value).any()).item()
        if is_other or self._last_received_at is None:
            self._last_received_at = rows["received_at"].max()  # type: ignore[assignment]  # the column holds instants
            self._heartbeat.wake()
        elif is_anything_open(self._ownership.connection, self._last_received_at):
            self._heartbeat.wake()
        else:
            self._heartbeat.rest()
