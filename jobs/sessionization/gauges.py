"""What the database says of sessions, at each scrape."""

from __future__ import annotations

from jobs.runtime.postgres.totals import Statement, Totals, configured_seconds
from monitoring import metrics

_SESSIONS_KNOWN = f"""
    SELECT frontier - {configured_seconds("session_gap_seconds")} AS over_before
    FROM positions JOIN jobs USING (job) WHERE job = %(job)s
"""
_OPEN_SESSIONS = "SELECT count(*) FROM sessions WHERE retracted_at IS NULL AND session_end >= %(over_before)s"


def totals(job: str) -> tuple[Totals, ...]:
    """The gauge of the table `sessions`."""
    return (Statement(metrics.OPEN_SESSIONS, job, _OPEN_SESSIONS, _SESSIONS_KNOWN),)
