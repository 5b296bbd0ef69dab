"""What endpoints are called about."""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    """The types of events, as triggers write them (migration 0092): to add one, make a trigger and name it here."""

    INVOICE_ISSUED = "weir.invoice.issued"
    INVOICE_VOIDED = "weir.invoice.voided"
    CORRECTION_CREATED = "weir.correction.created"
    STRAGGLER_HELD = "weir.straggler.held"
    THRESHOLD_CROSSED = "weir.threshold.crossed"
    THRESHOLD_RETRACTED = "weir.threshold.retracted"
    PATTERN_MATCHED = "weir.pattern.matched"
    PATTERN_RETRACTED = "weir.pattern.retracted"
    WATCH_HIT = "weir.watch.hit"
    SOURCE_SILENT = "weir.source.silent"
    SOURCE_HEARD = "weir.source.heard"
    DEAD_LETTER_SPIKE = "weir.dead_letter.spike"
    DEAD_LETTER_SPIKE_ENDED = "weir.dead_letter.spike_ended"


OF_NO_ACCOUNT = frozenset(
    {
        *(EventType.WATCH_HIT, EventType.SOURCE_SILENT, EventType.SOURCE_HEARD),
        *(EventType.DEAD_LETTER_SPIKE, EventType.DEAD_LETTER_SPIKE_ENDED),
    }
)
"""They are of the operator: an endpoint of some accounts does not get them."""
