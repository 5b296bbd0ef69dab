"""What the database says of windows and stragglers, at each scrape."""

from __future__ import annotations

from jobs.billing.audit_totals import audit_totals
from jobs.billing.straggler_totals import StragglerTotals
from jobs.runtime.postgres.totals import Statement, Totals
from metering.lateness import WINDOW_STATE_SQL
from monitoring import metrics

_WINDOWS_KNOWN = "SELECT frontier, closed_until, frontier - interval '1 hour' AS shown_from FROM closed_usage"
OF_THE_METER = "coalesce(closed_meters.closed_until, %(closed_until)s)"
_WINDOWS = f"""
    SELECT {WINDOW_STATE_SQL.format(corrected="corrected", closed_until=OF_THE_METER)}, count(*)
    FROM usage_windows LEFT JOIN closed_meters USING (meter) WHERE window_start >= %(shown_from)s GROUP BY 1
"""


def totals(job: str) -> tuple[Totals, ...]:
    """Gauges of the tables `usage_windows`, `stragglers` and `audits`."""
    return (Statement(metrics.WINDOWS, job, _WINDOWS, _WINDOWS_KNOWN), StragglerTotals(), *audit_totals(job))
