"""On time, late or a straggler: the rule row by row, for `jobs/billing/sums.py`, which has it for columns."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from metering.windows import Window


class Arrival(StrEnum):
    """A row relative to its window. On-time and late rows are included; a straggler follows its meter's policy."""

    ON_TIME = "on_time"
    LATE = "late"
    STRAGGLER = "straggler"


def arrival(received_at: datetime, window: Window, grace: timedelta, closed_before: datetime | None = None) -> Arrival:
    """Classify a row of `window` by when it was received: each border belongs to the later side.

    `closed_before`: what ended by then had closed under another grace, so only stragglers reach it.
    """
    if closed_before is not None and window.end <= closed_before:
        return Arrival.STRAGGLER
    if received_at < window.end:
        return Arrival.ON_TIME
    if received_at < window.end + grace:
        return Arrival.LATE
    return Arrival.STRAGGLER
