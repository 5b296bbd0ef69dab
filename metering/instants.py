"""Instants: aware datetimes, exact to the microsecond; how they are written; and clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Where Unix time begins."""


class Clock(Protocol):
    """What time it is. Only the top of a program reads the machine's; what stamps or compares times is given one."""

    def now(self) -> datetime:
        """The instant, in UTC. Setting the machine's clock moves it, also back."""

    def monotonic(self) -> float:
        """Seconds since some moment, for what is to happen after a while: they only grow."""


def rfc3339(instant: datetime) -> str:
    """An instant in UTC with `Z`; with fractions only if there are any. Raises ValueError without a zone."""
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no time zone")
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
