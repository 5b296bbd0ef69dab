"""Which hour, day or month a minute belongs to. Oracles: every minute lies in exactly one, and they leave no gap."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.queries.periods import Window, bounds, first_start_from

ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"),
    "America/Havana",  # the clock goes back at 01:00: two midnights
    "America/Sao_Paulo",  # the clock went forward at midnight: none
    "Pacific/Apia",  # one day was left out altogether
]
days = st.dates(date(1980, 1, 1), date(2037, 12, 31))
zones = st.sampled_from(ZONES).map(ZoneInfo)
calendar = st.sampled_from([Window.DAY, Window.MONTH])
instants = st.datetimes(datetime(1980, 1, 1), datetime(2037, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001


def first_date(window: Window, day: date) -> date:
    return day if window is Window.DAY else day.replace(day=1)


@given(calendar, instants, zones)
def test_a_window_contains_the_instants_it_is_named_after(window: Window, instant: datetime, zone: ZoneInfo) -> None:
    start, end = bounds(window, first_date(window, instant.astimezone(zone).date()), zone)
    assert start <= instant < end


@given(calendar, days, zones)
def test_the_next_window_starts_where_this_one_ends(window: Window, day: date, zone: ZoneInfo) -> None:
    first = first_date(window, day)
    following = first_date(window, first + timedelta(days=1 if window is Window.DAY else 31))
    assert bounds(window, first, zone)[1] == bounds(window, following, zone)[0]


@given(st.sampled_from(Window), instants, zones)
def test_the_first_start_is_the_earliest_at_or_after(window: Window, instant: datetime, zone: ZoneInfo) -> None:
    start = first_start_from(window, instant, zone)
    assert instant <= start
    assert first_start_from(window, start, zone) == start
    just_before = start - timedelta(microseconds=1)
    assert just_before < instant or first_start_from(window, just_before, zone) == start


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_a_day_of_a_clock_change_is_an_hour_shorter_or_longer(day: str, hours: int) -> None:
    start, end = bounds(Window.DAY, date.fromisoformat(day), ZoneInfo("Europe/Berlin"))
    assert end - start == timedelta(hours=hours)


def test_a_month_is_the_calendars() -> None:
    start, end = bounds(Window.MONTH, date(2026, 2, 1), ZoneInfo("Europe/Berlin"))
    assert (start, end) == (datetime(2026, 1, 31, 23, tzinfo=UTC), datetime(2026, 2, 28, 23, tzinfo=UTC))
