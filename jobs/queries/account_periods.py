"""The days and months of each account's own calendar: the zone of a day is the one in force when its month began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from jobs.queries.periods import Window, bounds, next_first_date
from jobs.queries.reading import Database
from metering.months import Month, ZoneChange, billing_month

_CALENDARS = """
    SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS held_from,
           array_agg(timezone ORDER BY holds_from) AS timezones
    FROM catalog.account_zones WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
    GROUP BY account
"""
_SPAN = """
    SELECT min(day) AS first, max(day) AS last FROM usage_days
    WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
"""
DAY = timedelta(days=1)
MAX_APART = timedelta(days=2)
"""Of a local date and that of UTC, after any change of zone."""

Calendar = tuple[ZoneChange, ...]
ALWAYS_UTC: Calendar = ()


@dataclass(frozen=True)
class Period:
    """`[start, end)` in UTC of the period that begins on the local date `first`."""

    first: date
    start: datetime
    end: datetime


def period_parameters(
    database: Database, window: Window, parameters: Mapping[str, Any], zone: ZoneInfo | None = None
) -> dict[str, Any]:
    """The parameters of `of_days`: of every calendar the periods that start in `[start, end)` of `parameters`.

    With a `zone` only those that start and end as a day or month of that zone does.
    """
    numbers: dict[Calendar, int] = {ALWAYS_UTC: 0}
    accounts = {
        row["account"]: numbers.setdefault(tuple(map(ZoneChange, row["held_from"], row["timezones"])), len(numbers))
        for row in database.execute(_CALENDARS, parameters).fetchall()
    }
    start, end = parameters["start"], parameters["end"]
    first, last = _dates(database, parameters)
    found = [
        (number, period)
        for calendar, number in numbers.items()
        for period in periods(window, calendar, first, last)
        if (start is None or period.start >= start) and (end is None or period.start < end)
        if zone is None or bounds(window, period.first, zone) == (period.start, period.end)
    ]
    firsts = [period.first for _, period in found]
    return {
        "calendar_accounts": list(accounts),
        "calendars": list(accounts.values()),
        "period_calendars": [number for number, _ in found],
        "firsts": firsts,
        "starts": [period.start for _, period in found],
        "ends": [period.end for _, period in found],
        "first_day": min(firsts, default=None),
        "end_day": next_first_date(window, max(firsts)) if firsts else None,
    }


def running_periods(
    database: Database, wanted: Iterable[tuple[str, Window]], now: datetime
) -> dict[tuple[str, Window], Period]:
    """The day or month (P1D, P1M) of each account that holds `now`, by the account's own calendar."""
    places = list(wanted)
    rows = database.execute(_CALENDARS, {"accounts": [account for account, _ in places]}).fetchall()
    calendars = {row["account"]: tuple(map(ZoneChange, row["held_from"], row["timezones"])) for row in rows}
    # A month may begin on a day of the one before, and no date is further from that of UTC.
    first, last = now.date() - MAX_APART, now.date() + MAX_APART
    return {
        (account, window): next(
            period
            for period in periods(window, calendars.get(account, ALWAYS_UTC), first, last)
            if period.start <= now < period.end
        )
        for account, window in places
    }


def _dates(database: Database, parameters: Mapping[str, Any]) -> tuple[date, date]:
    """From which to which date periods begin that have usage and may start in the range."""
    days = database.execute(_SPAN, parameters).fetchone()
    if days is None or days["first"] is None:
        return date.max, date.min
    first, last = days["first"], days["last"]
    if parameters["start"] is not None:
        first = max(first, parameters["start"].astimezone(UTC).date() - MAX_APART)
    if parameters["end"] is not None:
        last = min(last, parameters["end"].astimezone(UTC).date() + MAX_APART)
    return first, last


def _days(month: Month, first: date, following: date) -> Iterator[Period]:
    """Those of a month: its first begins where the month before ended, in whichever zone that was.

    A day that has no minute there, after a move to the east, lasts as long as the next: usage that was decided before
    the move was known may be on it.
    """
    start, day, empty = month.start, first, 0
    while day < following:
        day += DAY
        end = min(month.end, bounds(Window.DAY, day, month.zone)[0]) if day < following else month.end
        if end <= start:
            empty += 1
            continue
        yield from (Period(day - DAY - DAY * before, start, end) for before in range(empty + 1))
        start, empty = end, 0


def periods(window: Window, calendar: Calendar, first: date, last: date) -> Iterator[Period]:
    """The days or months of a calendar that hold the dates from `first` to `last`."""
    reached = first.replace(day=1)
    while reached <= last:
        month = billing_month(calendar, reached)
        following = next_first_date(Window.MONTH, reached)
        if window is Window.MONTH:
            yield Period(reached, month.start, month.end)
        else:
            yield from _days(month, reached, following)
        reached = following
