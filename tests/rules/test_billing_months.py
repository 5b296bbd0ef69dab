"""Billing months of an account whose time zone changes: any history, beside a walk from month to month.

Then the whole way: versions of an account as joins has them, at any point of knowledge, and the days and months that
readers cut by.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.audit.bills.months import BilledMonth, Months, wrong_months
from jobs.joins.billing_days import BillingDays
from jobs.queries.account_periods import Period, periods
from jobs.queries.periods import Window
from jobs.streams import ACCOUNTS
from metering.months import Month, ZoneChange, billing_month, zone_changes, zone_of

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


def walked(history: Sequence[ZoneChange], month: date) -> Month:
    """The oracle: every month from long before, each in the zone that holds when it begins."""
    zone = zone_of(history[0].timezone) if history else ZoneInfo("UTC")
    reached = date(2024, 1, 1)
    start = midnight(reached, zone)
    while True:
        for change in history[1:]:
            if change.holds_from is not None and change.holds_from <= start:
                zone = zone_of(change.timezone)
        following = (reached + timedelta(days=31)).replace(day=1)
        end = midnight(following, zone)
        if reached == month:
            return Month(start, end, zone)
        reached, start = following, end


def midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


@given(histories())
def test_oracle_a_month_equals_stepping_from_month_to_month(history: list[ZoneChange]) -> None:
    assert months(history) == [walked(history, month) for month in MONTHS]
    assert months([]) == [walked([], month) for month in MONTHS]


# What is done to an account: when, to which zone (None: it is deleted), from when on.
edits = st.lists(
    st.tuples(instants, st.sampled_from([*ZONES, *ZONES, None]), st.none() | instants),
    max_size=6,
    unique_by=lambda edit: edit[0],
).map(lambda done: sorted(done, key=lambda edit: edit[0]))
Edits = list[tuple[datetime, str | None, datetime | None]]


def versions(done: Edits) -> pa.Table:
    """As joins has them: the lsn of the n-th is 10n."""
    rows = [
        {"lsn": 10 * number, "account": "a", "timezone": zone, "deleted": zone is None, "committed_at": at}
        | {"effective_from": effective_from or at}
        for number, (at, zone, effective_from) in enumerate(done, start=1)
    ]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def calendar_of(done: Edits) -> tuple[ZoneChange, ...]:
    """As the trigger keeps it (`test_account_zones` holds the database to it)."""
    return zone_changes((max(at, since or at), zone) for at, zone, since in done if zone is not None)


def named(accounts: pa.Table, at: datetime, decided_lsn: int) -> date:
    outcome = pl.DataFrame({"account": ["a"], "event_time": [at], "request_lsn": [decided_lsn], "completion_lsn": [1]})
    day = BillingDays(accounts).days(outcome.with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC"))))[0]
    assert isinstance(day, date)
    return day


def holding(calendar: tuple[ZoneChange, ...], window: Window, at: datetime) -> set[date]:
    """What the periods are called that hold an instant: two where a day has no minute of its own."""
    around = timedelta(days=3)
    found: list[Period] = list(periods(window, calendar, (at - around).date(), (at + around).date()))
    return {period.first for period in found if period.start <= at < period.end}


@settings(max_examples=150)
@given(edits, instants)
def test_what_joins_calls_a_day_is_the_day_and_the_month_that_readers_cut(done: Edits, at: datetime) -> None:
    """Also of an account that is deleted, made again, moved, or whose zone is announced and taken back."""
    day, calendar = named(versions(done), at, 999), calendar_of(done)
    if MONTHS[1] <= day < MONTHS[-1]:
        assert day in holding(calendar, Window.DAY, at)
        assert holding(calendar, Window.MONTH, at) == {day.replace(day=1)}


@settings(max_examples=150)
@given(edits, instants, st.integers(0, 6))
def test_usage_that_was_decided_before_a_zone_was_known_is_no_fault_and_another_month_is(
    done: Edits, at: datetime, known: int
) -> None:
    accounts, calendars = versions(done), {"a": calendar_of(done)}
    minute = at.replace(second=0, microsecond=0)
    month = named(accounts, minute, 10 * known + 1).replace(day=1)

    def found(month: date) -> int:
        billed = BilledMonth("a", month, minute, minute + timedelta(minutes=1))
        return wrong_months(Months([billed], calendars), accounts).found

    assert found(month) == 0
    assert found((month + timedelta(days=70)).replace(day=1)) == 1


@given(histories())
def test_each_day_of_a_month_is_in_a_period_and_periods_tile_the_month(history: list[ZoneChange]) -> None:
    for month, called in list(zip(months(history), MONTHS, strict=True))[:-1]:
        following = (called + timedelta(days=31)).replace(day=1)
        found = list(periods(Window.DAY, tuple(history), called, called))
        assert {period.first for period in found} == {called + timedelta(n) for n in range((following - called).days)}
        spans = sorted({(period.start, period.end) for period in found})
        assert [end for _, end in spans] == [*(start for start, _ in spans[1:]), month.end]
        assert spans[0][0] == month.start


@given(st.sampled_from(ZONES[:5]))
def test_without_a_change_a_month_is_that_of_the_zones_calendar(zone: str) -> None:
    for month, called in zip(months([ZoneChange(None, zone)]), MONTHS, strict=True):
        local = month.start.astimezone(month.zone)
        assert (local.year, local.month, local.day) == (called.year, called.month, 1)
        assert (month.start - timedelta(microseconds=1)).astimezone(month.zone).month != called.month
