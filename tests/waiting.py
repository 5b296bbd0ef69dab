"""How every test waits: for a condition, and never for a time that was guessed."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120, *, every_seconds: float = 0.2) -> None:
    """Fail when `condition` does not hold within the time; it is asked again every so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(every_seconds)
