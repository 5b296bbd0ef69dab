"""Sessionization's metrics."""

from __future__ import annotations

from metering.vocabulary import Job, SessionChange
from monitoring.instruments import CounterMetric, GaugeMetric

SESSIONIZATION = (Job.SESSIONIZATION,)

SESSIONS = CounterMetric(
    "weir_sessions_total", "sessions", "Changes of sessions, by kind.", {"change": tuple(SessionChange)}, SESSIONIZATION
)
OPEN_SESSIONS = GaugeMetric(
    "weir_open_sessions",
    "sessions",
    "Sessions that the next event of their user would extend.",
    programs=SESSIONIZATION,
    from_database=True,
)
