"""Billing months of an account whose time zone changes: any history, with joins' days as the second opinion."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jobs.joins.billing_days import month_zones
from metering.months import Month, ZoneChange, billing_month
from metering.pricing import Version

ZONES = ("UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin", "America/Havana", "No/Where")
MONTHS = [date(2025 + number // 12, number % 12 + 1, 1) for number in range(24)]
# Often just when a month begins somewhere, or an hour beside it.
instants = st.builds(
    lambda month, hours: datetime(month.year, month.month, 1, tzinfo=UTC) + timedelta(hours=hours),
    st.sampled_from(MONTHS),
    st.one_of(st.integers(-14, 14), st.integers(0, 650)),
)


@st.composite
def histories(draw: st.DrawFn) -> list[ZoneChange]:
    changes = draw(st.lists(instants, max_size=6, unique=True).map(sorted))
    return [ZoneChange(at, draw(st.sampled_from(ZONES))) for at in [None, *changes]]


def months(history: list[ZoneChange]) -> list[Month]:
    return [billing_month(history, month) for month in MONTHS]


@given(histories())
def test_each_month_starts_where_the_one_before_ended(history: list[ZoneChange]) -> None:
    assert all(later.start == earlier.end for earlier, later in pairwise(months(history)))
    assert all(timedelta(days=26) < month.end - month.start < timedelta(days=33) for month in months(history))


@given(histories(), st.sampled_from(ZONES), instants)
def test_a_change_moves_no_border_of_a_month_that_has_begun(history: list[ZoneChange], zone: str, at: datetime) -> None:
    known = [change for change in history if change.holds_from is None or change.holds_from < at]
    for before, after in zip(months(known), months([*known, ZoneChange(at, zone)]), strict=True):
        if before.start < at:
            assert after == before


@given(histories())
def test_differential_a_months_zone_is_the_one_that_names_the_days_of_its_usage(history: list[ZoneChange]) -> None:
    beginning = datetime(1980, 1, 1, tzinfo=UTC)
    versions = [Version(lsn, c.holds_from or beginning, c.timezone) for lsn, c in enumerate(history, start=1)]
    zones = month_zones(versions, len(versions) + 1)
    for month in months(history):
        named = next(name for start, name, _ in reversed(zones) if start <= month.start)
        assert billing_month([ZoneChange(None, named)], date(2030, 1, 1)).zone == month.zone
        assert all(not month.start < start < month.end for start, *_ in zones)


@given(st.sampled_from(ZONES[:5]))
def test_without_a_change_a_month_is_that_of_the_zones_calendar(zone: str) -> None:
    for month, called in zip(months([ZoneChange(None, zone)]), MONTHS, strict=True):
        local = month.start.astimezone(month.zone)
        assert (local.year, local.month, local.day) == (called.year, called.month, 1)
        assert (month.start - timedelta(microseconds=1)).astimezone(month.zone).month != called.month
