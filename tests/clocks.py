"""A clock that a test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class HandClock:
    """A `Clock` that stands still until it is moved."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = now
        self._seconds = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._seconds

    def go(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds
        self._now += timedelta(seconds=seconds)
