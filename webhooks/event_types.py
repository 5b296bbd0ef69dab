"""What endpoints are called about."""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    """The types of events, as the triggers of migration 0080 write them."""

    INVOICE_ISSUED = "weir.invoice.issued"
    INVOICE_VOIDED = "weir.invoice.voided"
    CORRECTION_CREATED = "weir.correction.created"
    STRAGGLER_HELD = "weir.straggler.held"
