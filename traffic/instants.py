"""Instants as whole milliseconds since 1970, and as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(instant_ms: int, offset_minutes: int = 0, beyond_us: int = 0) -> str:
    """`2026-01-01T00:00:00.123Z`, or with the offset of a zone, or with the microseconds beyond the millisecond."""
    seconds, milliseconds = divmod(instant_ms, 1000)
    zone = timezone(timedelta(minutes=offset_minutes)) if offset_minutes else UTC
    text = datetime.fromtimestamp(seconds, zone).isoformat()
    beyond = f"{beyond_us:03d}" if beyond_us else ""
    return f"{text[:19]}.{milliseconds:03d}{beyond}{text[19:] if offset_minutes else 'Z'}"


def instant_of(instant_ms: int) -> datetime:
    """The instant as an aware datetime, exactly."""
    return EPOCH + timedelta(milliseconds=instant_ms)


def milliseconds(instant: datetime) -> int:
    """Whole milliseconds since 1970 of an aware datetime, rounded down."""
    return (instant - EPOCH) // timedelta(milliseconds=1)
