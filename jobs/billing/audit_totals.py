"""Totals of the table `audits`: when the last proof was, what it found, and what was corrected."""

from __future__ import annotations

from jobs.runtime.postgres.totals import Statement, Totals
from monitoring import metrics

# On a stack that was never audited time counts from the first usage that was billed.
_BEGAN = "SELECT min(committed_at) AS began FROM batches WHERE job = %(job)s"
_PROVED = """
    SELECT audited, extract(epoch FROM coalesce(proved, %(began)s))
    FROM (
        SELECT 'anything', max(started_at) FROM audits WHERE is_proved
        UNION ALL
        SELECT 'everything', max(started_at) FROM audits
        WHERE is_proved AND received_from IS NULL AND occurred_to IS NULL
    ) AS last (audited, proved)
"""
# A later audit of at least the same period that ends replaces it.
_FOUND = """
    SELECT key, max(value::bigint)
    FROM audits AS finding CROSS JOIN LATERAL jsonb_each_text(unexpected)
    WHERE unexpected <> '{}' AND NOT EXISTS (
        SELECT FROM audits AS later
        WHERE later.audit_id > finding.audit_id AND later.finished_at IS NOT NULL AND later.failure IS NULL
          AND (later.received_from IS NULL OR later.received_from <= finding.received_from)
          AND (later.occurred_to IS NULL OR later.occurred_to >= finding.occurred_to)
    )
    GROUP BY key
"""
_CORRECTED = """
    SELECT key, sum(value::bigint) FROM audits CROSS JOIN LATERAL jsonb_each_text(corrected)
    WHERE corrected <> '{}' GROUP BY key
"""


def audit_totals(job: str) -> tuple[Totals, ...]:
    """Gauges of the table `audits`."""
    return (
        Statement(metrics.AUDIT_PROVED, job, _PROVED, _BEGAN),
        Statement(metrics.AUDIT_FOUND, job, _FOUND),
        Statement(metrics.AUDIT_CORRECTED, job, _CORRECTED),
    )
