"""Specification: when an event occurred, and whether that is close enough to its reception to be accepted.

`jobs/ingestion/event_times.py` and `receptions.py` have the same for columns. Instants are aware, and exact to the
microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from jobs.ingestion.config import IngestionConfig

MILLISECOND = timedelta(milliseconds=1)


class Acceptance(StrEnum):
    """Whether an event's time is close enough to its reception to be accepted."""

    ACCEPTED = "accepted"
    TOO_OLD = "too_old"
    FUTURE = "future"


@dataclass(frozen=True)
class AcceptWindow:
    """How far before (`past`) and after (`future`) its reception an event may have occurred; both ends are inside."""

    past: timedelta
    future: timedelta

    def __post_init__(self) -> None:
        if self.past < timedelta(0) or self.future < timedelta(0):
            raise ValueError(f"an accept window reaches back and ahead, not past={self.past}, future={self.future}")

    def acceptance(self, event_time: datetime, received_at: datetime) -> Acceptance:
        """`received_at - past <= event_time <= received_at + future`, else why not."""
        if event_time < received_at - self.past:
            return Acceptance.TOO_OLD
        return Acceptance.FUTURE if event_time > received_at + self.future else Acceptance.ACCEPTED


def accept_window(config: IngestionConfig) -> AcceptWindow:
    """How far an accepted event's time may be from its reception."""
    return AcceptWindow(timedelta(seconds=config.accept_past_seconds), timedelta(seconds=config.accept_future_seconds))


def first_reception(marked_at: datetime, received_at: datetime, window: AcceptWindow) -> datetime | None:
    """When a record of the past was first received, by the mark of a trusted source; None if it is out of range.

    `window`: how far before and after `received_at` such a mark may be. No mark makes a record younger than it is.
    """
    if window.acceptance(marked_at, received_at) is not Acceptance.ACCEPTED:
        return None
    return min(marked_at, received_at)


@dataclass(frozen=True)
class ClockReading:
    """An event's time, and how far its device's clock was behind (None: trusted, or nothing to measure it by)."""

    event_time: datetime
    offset: timedelta | None = None

    @property
    def offset_ms(self) -> int | None:
        """The offset in whole milliseconds, rounded down."""
        return None if self.offset is None else self.offset // MILLISECOND


def read_trusted_clock(occurred_at: datetime) -> ClockReading:
    """Gateways keep time: an event occurred when its source says it did."""
    return ClockReading(occurred_at)


def read_device_clock(
    occurred_at: datetime, sent_at: datetime | None, received_at: datetime, tolerance: timedelta
) -> ClockReading:
    """`occurred_at + (received_at - sent_at)`: one clock made both readings, so its error cancels out.

    An offset within `tolerance` is noted and not applied: it is the way through the network, not an error. Without
    `sent_at` there is nothing to correct by, and the reading has no offset.
    """
    if sent_at is None:
        return ClockReading(occurred_at)
    offset = received_at - sent_at
    return ClockReading(occurred_at if abs(offset) <= tolerance else occurred_at + offset, offset)
