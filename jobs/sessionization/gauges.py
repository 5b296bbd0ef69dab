"""Gauges of sessions, read from the database at each scrape."""

from __future__ import annotations

from jobs.runtime.postgres.totals import Statement, Totals
from monitoring import metrics

_SESSIONS_KNOWN = "SELECT closed_before FROM closed_sessions"
_OPEN_SESSIONS = "SELECT count(*) FROM sessions WHERE retracted_at IS NULL AND session_end >= %(closed_before)s"


def totals(job: str) -> tuple[Totals, ...]:
    """The gauge of the table `sessions`."""
    return (Statement(metrics.OPEN_SESSIONS, job, _OPEN_SESSIONS, _SESSIONS_KNOWN),)
