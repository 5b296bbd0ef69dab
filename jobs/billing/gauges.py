"""Gauges of windows, stragglers and unpublished rows, read from the database at each scrape."""

from __future__ import annotations

from jobs.billing.audit_totals import audit_totals
from jobs.billing.ordered.state import BEHIND
from jobs.billing.straggler_totals import StragglerTotals
from jobs.billing.webhook_totals import webhook_totals
from jobs.queries.correction_consumers import MAX_LOOKED_AT, OF_CONSUMER
from jobs.runtime.postgres.totals import Statement, Totals
from metering.lateness import WINDOW_STATE_SQL
from monitoring import metrics

_WINDOWS_KNOWN = "SELECT frontier, closed_until, frontier - interval '1 hour' AS shown_from FROM closed_usage"
OF_THE_METER = "coalesce(closed_meters.closed_until, %(closed_until)s)"
_WINDOWS = f"""
    SELECT {WINDOW_STATE_SQL.format(corrected="corrected", closed_until=OF_THE_METER)}, count(*)
    FROM usage_windows LEFT JOIN closed_meters USING (meter) WHERE window_start >= %(shown_from)s GROUP BY 1
"""
# As many corrections as numbers: where a transaction was not committed, fewer.
_UNSENT = """
    SELECT 'windows', count(*) FROM unsent_windows
    UNION ALL
    SELECT topic, greatest(0, (SELECT max(number) FROM corrections) - sent_number)
    FROM publications WHERE topic = 'corrections'
"""
_UNSENT_SECONDS = """
    SELECT topic, coalesce(extract(epoch FROM clock_timestamp() - CASE topic
        WHEN 'windows' THEN (SELECT changed_at FROM unsent_windows ORDER BY number LIMIT 1)
        ELSE (SELECT corrected_at FROM corrections WHERE number > sent_number ORDER BY number LIMIT 1)
    END), 0)
    FROM publications
"""


_UNACKNOWLEDGED = f"""
    SELECT greatest(max(extract(epoch FROM clock_timestamp() - oldest)), 0)
    FROM correction_consumers AS c CROSS JOIN LATERAL (
        SELECT min(corrected_at) AS oldest FROM (
            SELECT account, corrected_at FROM corrections WHERE corrections.number > c.number
            ORDER BY corrections.number LIMIT {MAX_LOOKED_AT}
        ) AS later WHERE {OF_CONSUMER}
    ) AS unapplied
"""


def totals(job: str) -> tuple[Totals, ...]:
    """Gauges of the tables `usage_windows`, `stragglers` and `audits`, of the outbox and of webhooks."""
    return (
        Statement(metrics.WINDOWS, job, _WINDOWS, _WINDOWS_KNOWN),
        StragglerTotals(),
        Statement(metrics.UNSENT, job, _UNSENT),
        Statement(metrics.UNSENT_SECONDS, job, _UNSENT_SECONDS),
        *audit_totals(job),
        *webhook_totals(job),
        Statement(metrics.UNACKNOWLEDGED, job, _UNACKNOWLEDGED),
        Statement(metrics.ORDERED_BEHIND, job, BEHIND),
    )
