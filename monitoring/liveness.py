"""Whether a driver's loop still goes round: a cluster asks `/live` before it ends a driver that hangs.

Waiting for a broker or a database is going round. A loop says itself how long its next round may take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

PATH = "/live"
ROUND_SECONDS = 180.0
"""Longer than all time-outs of one round together."""
START_SECONDS = 1_800.0
"""What a driver remembers is derived from its tables when it starts, however large they are. So long, too, may a batch
take that its loop takes itself: it may be large, or wait for somebody's lock."""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Loop:
    """One loop and its promise. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._due = float("inf")

    def expect_round_within(self, seconds: float, now: float | None = None) -> None:
        """A promise that replaces the last one."""
        self._due = (time.monotonic() if now is None else now) + seconds

    def is_live(self, now: float) -> bool:
        """Whether the last promise can still be kept."""
        return now <= self._due


LOOP = Loop()
"""Of this process."""


def answering(loop: Loop, metrics: Application) -> Application:
    """An application that answers PATH with 200 or 503, and anything else as `metrics` does."""

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environment.get("PATH_INFO") != PATH:
            return metrics(environment, start)
        is_live = loop.is_live(time.monotonic())
        start("200 OK" if is_live else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"live\n" if is_live else b"the driver's loop hangs\n"]

    return answer
