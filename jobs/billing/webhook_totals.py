"""Gauges of webhooks, which billing exposes: the process that sends them may be what is missing."""

from __future__ import annotations

from jobs.runtime.postgres.totals import Statement, Totals
from monitoring import metrics

MAX_COUNTED = 100_000
# One step in an index for each endpoint that is enabled, and one for what the sender has not read.
_WAITING = """
    SELECT greatest(extract(epoch FROM clock_timestamp() - least((
        SELECT min(made_at) FROM webhook_endpoints AS e CROSS JOIN LATERAL (
            SELECT number FROM webhook_deliveries AS d
            WHERE d.endpoint = e.endpoint AND state = 'waiting' ORDER BY number LIMIT 1
        ) AS oldest JOIN webhook_events USING (number) WHERE disabled_at IS NULL
    ), (
        SELECT made_at FROM webhook_events WHERE number > (SELECT queued_to FROM webhook_position)
        ORDER BY number LIMIT 1
    ))), 0)
"""
_DEAD = f"""
    SELECT count(*) FROM (SELECT FROM webhook_deliveries WHERE state = 'dead' LIMIT {MAX_COUNTED}) AS dead
"""
# The sender disables an endpoint in its own name, people in theirs.
_GONE = "SELECT count(*) FROM webhook_endpoints WHERE disabled_at IS NOT NULL AND changed_by = 'weir'"


def webhook_totals(job: str) -> tuple[Totals, ...]:
    """Gauges of the outbox and of the endpoints; zero where there is none."""
    return (
        Statement(metrics.WEBHOOKS_WAITING, job, _WAITING),
        Statement(metrics.WEBHOOKS_DEAD, job, _DEAD),
        Statement(metrics.WEBHOOKS_GONE, job, _GONE),
    )
