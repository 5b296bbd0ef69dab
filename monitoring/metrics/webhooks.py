"""Metrics of webhooks. billing exposes them: the process that sends may be what is missing."""

from __future__ import annotations

from metering.vocabulary import Job
from monitoring.instruments import GaugeMetric

BILLING = (Job.BILLING,)

WEBHOOKS_WAITING = GaugeMetric(
    "weir_webhook_waiting_seconds",
    "seconds",
    "Age of the oldest event that an enabled endpoint has not taken, or that the sender has not read; 0 without one.",
    {},
    BILLING,
    from_database=True,
)
WEBHOOKS_DEAD = GaugeMetric(
    "weir_webhook_dead_deliveries",
    "deliveries",
    "Deliveries of webhooks that were given up; above 100,000 they are not counted.",
    {},
    BILLING,
    from_database=True,
)
WEBHOOKS_GONE = GaugeMetric(
    "weir_webhook_gone_endpoints",
    "endpoints",
    "Endpoints of webhooks that are disabled because they answered 410.",
    {},
    BILLING,
    from_database=True,
)
