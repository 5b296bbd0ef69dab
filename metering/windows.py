"""Tumbling windows `[start, end)` of event time, aligned to the Unix epoch in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from metering.instants import EPOCH

MINUTE = timedelta(minutes=1)
"""Length of the windows that billing stores; coarser ones are sums of them."""


@dataclass(frozen=True, order=True)
class Window:
    """`start` belongs to the window, `end` to the next one. Raises ValueError when empty or without a time zone."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError(f"a window needs instants with a time zone, not {self.start} and {self.end}")
        if not self.start < self.end:
            raise ValueError(f"a window ends after it starts; {self.start} .. {self.end} does not")

    def __contains__(self, instant: datetime) -> bool:
        return self.start <= instant < self.end


def tumbling(instant: datetime, size: timedelta = MINUTE) -> Window:
    """The one window of `size` that holds `instant`. Raises ValueError for a size that is not positive."""
    if size <= timedelta():
        raise ValueError(f"a window's size must be positive, not {size}")
    start = instant - (instant - EPOCH) % size
    return Window(start, start + size)
