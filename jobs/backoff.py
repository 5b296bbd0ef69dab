"""When a program that ended is started again: soon, however old it is and however often it failed before."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DELAY_SECONDS = 30.0
STEADY_AFTER_SECONDS = 60.0
"""A program that ran this long was well: its next failure counts as the first."""


@dataclass(frozen=True)
class Backoff:
    """How often a program has failed in a row."""

    failures: int = 0

    def after(self, ran_seconds: float) -> Backoff:
        """The state after a run of that length ended."""
        return Backoff(1 if ran_seconds >= STEADY_AFTER_SECONDS else self.failures + 1)

    @property
    def delay_seconds(self) -> float:
        """How long to wait before the next start: 0, then 1, 2, 4, … up to `MAX_DELAY_SECONDS`."""
        # The exponent is capped because a program may fail for weeks.
        return min(MAX_DELAY_SECONDS, 2.0 ** min(self.failures - 1, 10)) if self.failures else 0.0
