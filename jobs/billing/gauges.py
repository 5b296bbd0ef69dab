"""What the database says of windows and stragglers, at each scrape."""

from __future__ import annotations

from jobs.billing.straggler_totals import StragglerTotals
from jobs.runtime.postgres.totals import Statement, Totals
from metering.lateness import WINDOW_STATE_SQL
from monitoring import metrics

_WINDOWS_KNOWN = "SELECT frontier, closed_until, frontier - interval '1 hour' AS shown_from FROM closed_usage"
_WINDOWS = f"""
    SELECT {WINDOW_STATE_SQL.format(corrected="corrected")}, count(*)
    FROM usage_windows WHERE window_start >= %(shown_from)s GROUP BY 1
"""


def totals(job: str) -> tuple[Totals, ...]:
    """Gauges of the tables `usage_windows` and `stragglers`."""
    return (Statement(metrics.WINDOWS, job, _WINDOWS, _WINDOWS_KNOWN), StragglerTotals())
