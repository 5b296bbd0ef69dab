"""Metrics of audits. Billing's driver exposes them, because an audit ends before it could be scraped."""

from __future__ import annotations

from enum import StrEnum

from metering.vocabulary import Job, UsageCause
from monitoring.instruments import GaugeMetric

CHECKS = (*(f"I{number}" for number in range(1, 11)), "I12")
"""docs/design.md, section 8."""
CAUSES = tuple(cause for cause in UsageCause if cause is not UsageCause.STREAM)


class Audited(StrEnum):
    """How much an audit looked at."""

    EVERYTHING = "everything"
    ANYTHING = "anything"
    """All of it or a period."""


AUDIT_PROVED = GaugeMetric(
    "weir_audit_proved_timestamp_seconds",
    "seconds since 1970",
    "When the last audit began that proved what it examined; before the first, when billing began.",
    {"audited": tuple(Audited)},
    (Job.BILLING,),
    from_database=True,
)
AUDIT_FOUND = GaugeMetric(
    "weir_audit_found",
    "differences",
    "Differences without a known cause, by check, that no later audit of the same has found gone.",
    {"check": CHECKS},
    (Job.BILLING,),
    from_database=True,
)
AUDIT_CORRECTED = GaugeMetric(
    "weir_audit_corrected",
    "rows",
    "Rows of usage that audits have appended, by cause.",
    {"cause": CAUSES},
    (Job.BILLING,),
    from_database=True,
)
