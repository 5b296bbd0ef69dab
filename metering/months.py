"""An account's calendar: its time zones, its billing months and its days. All that names or cuts a month goes by it.

A billing month is `[start, end)` in the account's zone at its start, converted to UTC; the next starts where it ended.
So a zone that changes within a month moves no border of it, and holds from the next month on. After a move to the west
that month begins on the last day of the one before: what is called so belongs to its first day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from metering.period_meters import Period

UNKNOWN_ZONE = "UTC"
UTC_ZONE = ZoneInfo(UNKNOWN_ZONE)
BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)
FIRST_WALKED, LAST_WALKED = datetime(1971, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""No event is older or younger; a zone that takes effect outside cannot move a month with usage."""

IN_MONTH_SQL = "day >= %(month)s::date AND day < (%(month)s::date + interval '1 month')::date"
"""Which rows of `usage_days` belong to the month that begins on `month`: usage belongs to the month of its day,
not of the account's present calendar. Everything that sums money by month uses this."""


@dataclass(frozen=True)
class ZoneChange:
    """From `holds_from` on the account's days are those of `timezone`. None: from the beginning of time."""

    holds_from: datetime | None
    timezone: str


@dataclass(frozen=True)
class MonthZone:
    """From `start` on, `zone` defines the days; none is before `first_day` (None: no limit)."""

    start: datetime
    zone: str
    first_day: date | None


@dataclass(frozen=True)
class Month:
    """`[start, end)` in UTC, by the calendar of `zone`."""

    start: datetime
    end: datetime
    zone: ZoneInfo


def zone_changes(versions: Iterable[tuple[datetime, str]]) -> tuple[ZoneChange, ...]:
    """The history of zones from an account's versions: (the later of `effective_from` and commit, zone), by lsn.

    The first zone applies from the beginning of time. Each later one applies from its own instant, and overrides what
    was announced for a later time. A deletion is no version of a zone: an account that is created again continues its
    calendar. In the database the trigger `catalog.keep_account_zone` is the copy of this rule (`test_account_zones`).
    """
    changes: list[ZoneChange] = []
    for begins, timezone in versions:
        changes = [change for change in changes if change.holds_from is None or change.holds_from <= begins]
        if not changes:
            changes = [ZoneChange(None, timezone)]
        elif changes[-1].timezone != timezone:
            if changes[-1].holds_from == begins:
                changes.pop()
            changes.append(ZoneChange(begins, timezone))
    return tuple(changes)


def month_zones(changes: Sequence[ZoneChange]) -> list[MonthZone]:
    """The zones of the account's months, in order; `changes` in order, UTC where there is none.

    Between two changes months are plain months of one zone, so only those in which something changes are looked at.
    """
    later = [
        (max(change.holds_from, FIRST_WALKED), change.timezone)
        for change in changes[1:]
        if change.holds_from is not None and change.holds_from < LAST_WALKED
    ]
    zone = changes[0].timezone if changes else UNKNOWN_ZONE
    zones = [MonthZone(BEGINNING_OF_TIME, zone, None)]
    month = 0
    for at, _ in later:
        if at <= zones[-1].start:
            continue
        local = at.astimezone(zone_of(zone))
        of_change = local.year * 12 + local.month - 1
        # After a change of zone the new month may begin on the last day of the old one: it is the new one all the same.
        month = of_change if of_change > month and _begins(of_change, zone) == at else max(of_change, month) + 1
        start = _begins(month, zone)
        zone = next(timezone for begins, timezone in reversed(later) if begins <= start)
        zones.append(MonthZone(start, zone, date(month // 12, month % 12 + 1, 1)))
    return zones


def billing_month(changes: Sequence[ZoneChange], month: date) -> Month:
    """The month that is called `month`, a first of a month; `changes` in order, UTC where there is none."""
    named = [zone for zone in month_zones(changes) if zone.first_day is None or zone.first_day <= month][-1]
    zone = zone_of(named.zone)
    following = (month + timedelta(days=31)).replace(day=1)
    start = named.start if named.first_day == month else midnight(month, zone)
    return Month(start, midnight(following, zone), zone)


def period_bounds(first_day: date, period: Period, month: MonthZone) -> tuple[datetime, datetime]:
    """`[start, end)` of the period with this first day, which is a day of `month`.

    A period that begins on the first day of `month` begins when the month does. It ends when the next one begins.
    """
    zone = zone_of(month.zone)
    start = month.start if first_day == month.first_day else midnight(first_day, zone)
    return start, midnight(period.following(first_day), zone)


@lru_cache(maxsize=4_096)
def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name; UTC for an unknown name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC_ZONE


def _begins(month: int, zone: str) -> datetime:
    """When a month (counted from year 0) begins in a zone."""
    return midnight(date(month // 12, month % 12 + 1, 1), zone_of(zone))


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """When `day` begins in `zone`: the first of two midnights, or the moment that a skipped one falls on (fold 0)."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
