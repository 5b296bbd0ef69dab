"""What sessionization says of sessions."""

from __future__ import annotations

from monitoring.instruments import CounterMetric, GaugeMetric
from monitoring.metrics.labels import SESSION_CHANGES

SESSIONIZATION = ("sessionization",)

SESSIONS = CounterMetric(
    "weir_sessions_total", "sessions", "Changes of sessions, by kind.", {"change": SESSION_CHANGES}, SESSIONIZATION
)
OPEN_SESSIONS = GaugeMetric(
    "weir_open_sessions",
    "sessions",
    "Sessions that the next event of their user would extend.",
    jobs=SESSIONIZATION,
    from_database=True,
)
