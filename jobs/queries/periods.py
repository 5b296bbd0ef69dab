"""The longer window that a minute belongs to: hours in UTC, days and months of a time zone's calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from metering.instants import EPOCH
from metering.months import midnight


class Window(StrEnum):
    """Sizes of windows, as ISO 8601 durations."""

    MINUTE = "PT1M"
    HOUR = "PT1H"
    DAY = "P1D"
    MONTH = "P1M"


UTC_ZONE = ZoneInfo("UTC")

_FIXED = {Window.MINUTE: timedelta(minutes=1), Window.HOUR: timedelta(hours=1)}


def window_key_sql(window: Window, instant: str = "window_start") -> str:
    """The SQL expression that names the window of an `instant`; it uses the parameter `zone`.

    An instant (the start) for minutes and hours, the first local date for days and months: `bounds` takes either.
    """
    match window:
        case Window.MINUTE:
            return instant
        case Window.HOUR:
            return f"date_trunc('hour', {instant}, 'UTC')"
        case Window.DAY:
            return f"date_trunc('day', {instant} AT TIME ZONE %(zone)s)::date"
        case Window.MONTH:
            return f"date_trunc('month', {instant} AT TIME ZONE %(zone)s)::date"


def bounds(window: Window, key: datetime | date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Start (inclusive) and end (exclusive), in UTC, of the window that `window_key_sql` calls `key`."""
    if isinstance(key, datetime):
        return key.astimezone(UTC), key.astimezone(UTC) + _FIXED[window]
    return midnight(key, zone), midnight(next_first_date(window, key), zone)


def is_window(window: Window, start: datetime, end: datetime, zone: ZoneInfo) -> bool:
    """Whether `[start, end)` is a day or month of the zone's calendar."""
    first = start.astimezone(zone).date()
    return (window is Window.DAY or first.day == 1) and bounds(window, first, zone) == (start, end)


def first_start_from(window: Window, instant: datetime, zone: ZoneInfo) -> datetime:
    """The earliest start of such a window at or after `instant`, in UTC."""
    if window in _FIXED:
        size = _FIXED[window]
        return EPOCH - (EPOCH - instant) // size * size
    today = instant.astimezone(zone).date()
    start, end = bounds(window, today if window is Window.DAY else today.replace(day=1), zone)
    return start if start == instant else end


def next_first_date(window: Window, first: date) -> date:
    """The first date of the day or month after the one that begins on `first`."""
    if window is Window.DAY:
        return first + timedelta(days=1)
    return (first + timedelta(days=31)).replace(day=1)
