"""What endpoints are called about."""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    """The types of events, as the triggers of migrations 0080 and 0090 write them."""

    INVOICE_ISSUED = "weir.invoice.issued"
    INVOICE_VOIDED = "weir.invoice.voided"
    CORRECTION_CREATED = "weir.correction.created"
    STRAGGLER_HELD = "weir.straggler.held"
    THRESHOLD_CROSSED = "weir.threshold.crossed"
    THRESHOLD_RETRACTED = "weir.threshold.retracted"
