"""Days and months in the time zone of an account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from traffic.instants import instant_of, milliseconds
from traffic.meters import MONTH


def day_in(zone: str, instant_ms: int) -> date:
    """The calendar's day in a zone."""
    return instant_of(instant_ms).astimezone(ZoneInfo(zone)).date()


def first_day(period: str, day: date) -> date:
    """The first day of the period that a day is in."""
    return day.replace(day=1) if period == MONTH else day


def starts_at(zone: str, day: date) -> int:
    """When a day begins in a zone (milliseconds)."""
    return milliseconds(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)))


def ends_at(zone: str, period: str, first: date) -> int:
    """When the period with this first day ends in a zone (milliseconds)."""
    return starts_at(zone, first_day(period, first + timedelta(days=31 if period == MONTH else 1)))


def period_starts(zone: str, period: str, before_ms: int) -> Iterator[int]:
    """When the periods in a zone began (milliseconds), from the one of this instant back, without end."""
    day = day_in(zone, before_ms)
    while True:
        day = first_day(period, day)
        yield starts_at(zone, day)
        day -= timedelta(days=1)
