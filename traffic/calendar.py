"""Days and months in the time zone of an account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from traffic.instants import instant_of, milliseconds


def day_in(zone: str, instant_ms: int) -> date:
    """The calendar's day in a zone."""
    return instant_of(instant_ms).astimezone(ZoneInfo(zone)).date()


def month_starts(zone: str, before_ms: int) -> Iterator[int]:
    """When the months in a zone began (milliseconds), from the one of this instant back, without end."""
    day = day_in(zone, before_ms)
    while True:
        day = day.replace(day=1)
        yield milliseconds(datetime(day.year, day.month, 1, tzinfo=ZoneInfo(zone)))
        day -= timedelta(days=1)
