"""Billing months: `[start, end)` in the account's zone at the start, converted to UTC; the next starts where it ended.

So a zone that changes within a month moves no border of it, and holds from the next month on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

UTC_ZONE = ZoneInfo("UTC")


@dataclass(frozen=True)
class ZoneChange:
    """From `holds_from` on the account's days are those of `timezone`. None: from the beginning of time."""

    holds_from: datetime | None
    timezone: str


@dataclass(frozen=True)
class Month:
    """`[start, end)` in UTC, by the calendar of `zone`."""

    start: datetime
    end: datetime
    zone: ZoneInfo


def billing_month(changes: Sequence[ZoneChange], month: date) -> Month:
    """The month that is called `month`, a first of a month; `changes` in order, UTC where there is none."""
    zone = zone_of(changes[0].timezone) if changes else UTC_ZONE
    later = [(change.holds_from, change.timezone) for change in changes[1:] if change.holds_from is not None]
    # Until the month in which the first change falls, months are plain months of the first zone.
    reached = min([month, *(_first(at.astimezone(zone)) for at, _ in later)])
    start = _midnight(reached, zone)
    while True:
        for at, timezone in later:
            if at <= start:
                zone = zone_of(timezone)
        following = (reached + timedelta(days=31)).replace(day=1)
        end = _midnight(following, zone)
        if reached == month:
            return Month(start, end, zone)
        reached, start = following, end


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name; UTC where nobody knows it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC_ZONE


def _first(instant: datetime) -> date:
    return instant.date().replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
