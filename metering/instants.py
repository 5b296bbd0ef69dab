"""Instants: aware datetimes, exact to the microsecond, and how they are written."""

from __future__ import annotations

from datetime import UTC, datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Where Unix time begins."""


def rfc3339(instant: datetime) -> str:
    """An instant in UTC with `Z`; fractions only where there are some. Raises ValueError without a zone."""
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no time zone")
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
