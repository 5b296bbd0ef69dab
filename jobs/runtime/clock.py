"""The machine's clock, which `python -m jobs` passes to all that it starts."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class MachineClock:
    """A `Clock` that goes as this machine's does."""

    def now(self) -> datetime:
        """The instant, in UTC."""
        return datetime.now(UTC)  # noqa: TID251 -- the one that jobs are given

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()
