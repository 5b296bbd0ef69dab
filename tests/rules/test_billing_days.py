"""Method: a plain walk through an account's months, one by one with zoneinfo, against whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.billing_days import BillingDays, offsets_of
from jobs.streams import ACCOUNTS
from metering.period_meters import Period
from metering.pricing import Version
from tests.specifications.pricing import account_as_of

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Santiago",
    "Africa/Cairo",
]
START = datetime(2025, 10, 1, tzinfo=UTC)
HOURS = st.integers(0, 24 * 400)
LSNS = range(5, 90, 5)
Change = tuple[int, str | None]
"""The hour from which it holds, and the zone; None: the account is deleted."""

begins = st.sampled_from(
    [(datetime(2025 + n // 12, n % 12 + 1, 1, tzinfo=UTC) - START).days * 24 for n in range(9, 22)]
)
histories = st.lists(st.tuples(HOURS | begins, st.sampled_from([*ZONES, *ZONES, None, "Mars/Olympus"])), max_size=8)


def hour(number: int) -> datetime:
    return START + timedelta(hours=number)


def versions_of(changes: Sequence[Change]) -> list[Version[str]]:
    return [Version(10 * n, hour(at), zone) for n, (at, zone) in enumerate(changes, start=1)]


def table(accounts: Mapping[str, Sequence[Change]]) -> pa.Table:
    rows = [
        {"lsn": v.lsn, "account": account, "timezone": v.value, "effective_from": v.effective_from}
        | {"deleted": v.value is None, "committed_at": None}
        for account, changes in accounts.items()
        for v in versions_of(changes)
    ]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def walked(changes: Sequence[Change], event_time: datetime, decided_lsn: int) -> date:
    """Month by month from long before the first change; a deletion leaves the calendar as it is."""
    versions = [version for version in versions_of(changes) if version.value is not None]

    def zone_at(instant: datetime) -> ZoneInfo:
        version = account_as_of(versions, instant, decided_lsn)
        name = version.value if version is not None and version.value is not None else "UTC"
        return ZoneInfo(name if name in ZONES else "UTC")

    year, month, zone = 2025, 1, zone_at(datetime.min.replace(tzinfo=UTC))
    while True:
        first = date(year, month, 1)
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        end = datetime(year, month, 1, tzinfo=zone).astimezone(UTC)
        if event_time < end:
            return max(event_time.astimezone(zone).date(), first)
        zone = zone_at(end)


def days(accounts: Mapping[str, Sequence[Change]], events: Sequence[tuple[str, datetime, int]]) -> list[date]:
    outcomes = pl.DataFrame(
        [(account, at, lsn, None) for account, at, lsn in events],
        schema={
            "account": pl.String,
            "event_time": pl.Datetime("us", "UTC"),
            "request_lsn": pl.Int64,
            "completion_lsn": pl.Int64,
        },
        orient="row",
    )
    return BillingDays(table(accounts)).days(outcomes).to_list()


@st.composite
def near_borders(draw: st.DrawFn) -> datetime:
    """Mostly around the first days of months, and around changes of summer time."""
    day = draw(
        st.sampled_from([date(2025 + n // 12, n % 12 + 1, 1) for n in range(9, 26)])
        | st.sampled_from([date(2025, 10, 26), date(2026, 3, 29), date(2026, 3, 8), date(2026, 4, 5), date(2026, 9, 6)])
    )
    seconds = draw(st.integers(-30 * 3600, 30 * 3600) | st.sampled_from([-1, 0, 1]))
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=seconds)


def test_a_zone_that_changes_when_a_month_begins_names_the_days_of_that_month() -> None:
    # Not the first month after the account began: that one is looked at in any case.
    changes: list[Change] = [(0, "UTC"), ((31 + 30) * 24, "America/New_York")]
    border = datetime(2025, 12, 1, tzinfo=UTC)
    assert days({"a": changes}, [("a", border, 50)]) == [walked(changes, border, 50)] == [date(2025, 12, 1)]


@settings(deadline=None, max_examples=60)
@given(accounts=st.fixed_dictionaries({"a": histories, "b": histories}), data=st.data())
def test_differential_whole_columns_give_the_days_of_a_walk_through_the_months(
    accounts: dict[str, list[Change]], data: st.DataObject
) -> None:
    one = st.tuples(st.sampled_from(["a", "b", "nobody"]), near_borders() | HOURS.map(hour), st.sampled_from(LSNS))
    events = data.draw(st.lists(one, min_size=1, max_size=20))
    expected = [walked(accounts.get(account, []), at, lsn) for account, at, lsn in events]
    assert days(accounts, events) == expected


@pytest.mark.parametrize("zone", ZONES)
def test_differential_offsets_of_a_zone_are_those_of_zoneinfo(zone: str) -> None:
    for number in range(400):
        day = date(2025, 10, 1) + timedelta(days=number)
        before, changes_at, after = offsets_of(zone, day)
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        for quarter in range(96):
            instant = midnight + timedelta(minutes=15 * quarter)
            expected = instant.astimezone(ZoneInfo(zone)).utcoffset()
            assert (before if instant < changes_at else after) == expected


def test_a_changed_zone_names_the_days_from_the_next_month_on() -> None:
    moved: list[Change] = [(0, "Pacific/Kiritimati"), (24 * 10, "Pacific/Pago_Pago")]
    event = datetime(2025, 10, 20, 11, tzinfo=UTC)
    later = datetime(2025, 11, 20, 10, tzinfo=UTC)
    assert days({"a": moved}, [("a", event, 99), ("a", later, 99)]) == [date(2025, 10, 21), date(2025, 11, 19)]


def test_an_account_that_is_made_again_after_a_months_end_keeps_its_zone() -> None:
    changes: list[Change] = [(0, "America/New_York"), (24 * 30, None), (24 * 32, "America/New_York")]
    evening = datetime(2025, 12, 1, 2, tzinfo=UTC)
    assert days({"a": changes}, [("a", evening, 99)]) == [date(2025, 11, 30)]
    while_deleted: list[Change] = changes[:2]
    assert days({"a": while_deleted}, [("a", evening, 99)]) == [date(2025, 11, 30)]


def test_months_are_adjacent_in_every_zone() -> None:
    """A month begins where the one before it ended, also when the account went around the world."""
    changes: list[Change] = [(0, "Pacific/Kiritimati"), (100, "Pacific/Pago_Pago"), (24 * 45, "Pacific/Kiritimati")]
    instants = [hour(number) for number in range(24 * 120)]
    found = days({"a": changes}, [("a", at, 99) for at in instants])
    assert all(following - one <= timedelta(days=2) for one, following in pairwise(found))


def test_a_distant_change_of_zone_is_found_without_stepping() -> None:
    far = [Version(10, START, "UTC"), Version(20, datetime(9999, 12, 31, tzinfo=UTC), "Asia/Kathmandu")]
    early = Version(30, datetime(1, 1, 1, tzinfo=UTC), "Europe/Berlin")
    rows = [
        {"lsn": v.lsn, "account": "a", "timezone": v.value, "effective_from": v.effective_from, "deleted": False}
        for v in [*far, early]
    ]
    outcomes = pl.DataFrame({"account": ["a"], "event_time": [hour(23)], "request_lsn": [40], "completion_lsn": [41]})
    typed = outcomes.with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC")))
    assert BillingDays(pa.Table.from_pylist(rows, schema=ACCOUNTS)).days(typed).to_list() == [date(2025, 10, 2)]


def test_a_backdated_zone_holds_from_its_commit() -> None:
    committed = datetime(2025, 11, 10, tzinfo=UTC)
    versions = [(1, "UTC", START), (2, "America/New_York", committed)]
    rows = [
        {"lsn": lsn, "account": "a", "timezone": zone, "effective_from": START, "deleted": False, "committed_at": at}
        for lsn, zone, at in versions
    ]
    accounts = pa.Table.from_pylist(rows, schema=ACCOUNTS)
    outcomes = pl.DataFrame(
        {
            "account": ["a", "a"],
            "event_time": [datetime(2025, 11, 30, 23, tzinfo=UTC), datetime(2025, 12, 31, 23, tzinfo=UTC)],
            "request_lsn": [50, 50],
            "completion_lsn": [50, 50],
        }
    ).with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC")))
    assert BillingDays(accounts).days(outcomes).to_list() == [date(2025, 11, 30), date(2025, 12, 31)]
    # November is of the zone that held when it began, as far as its bill, and December of the new one.
    midnight = outcomes.with_columns(event_time=pl.Series([datetime(2025, 12, 1, tzinfo=UTC)] * 2))
    assert BillingDays(accounts).days(midnight.cast(outcomes.schema)).to_list() == [date(2025, 12, 1)] * 2


@settings(deadline=None, max_examples=60)
@given(
    changes=st.lists(st.tuples(HOURS | begins, st.sampled_from([*ZONES, None]), HOURS), min_size=1, max_size=6),
    events=st.lists(st.tuples(HOURS | begins, st.integers(0, 24 * 60)), min_size=2, max_size=30),
    period=st.sampled_from(list(Period)),
)
def test_a_day_or_month_of_an_account_begins_and_ends_once_whatever_was_known_when(
    changes: list[tuple[int, str | None, int]], events: list[tuple[int, int]], period: Period
) -> None:
    """Each version is known from its commit on. It may begin later, and be replaced before; usage may be decided late.

    What was decided before the account was known is looked at later, as an audit does.
    """
    lsn_of = {number: 10 * at + 1 for number, (at, _, _) in enumerate(sorted(changes, key=lambda change: change[0]))}
    rows = [
        {"lsn": lsn_of[number], "account": "a", "timezone": zone, "effective_from": hour(max(at, begins_at))}
        | {"deleted": zone is None and number > 0, "committed_at": hour(at)}
        for number, (at, zone, begins_at) in enumerate(sorted(changes, key=lambda change: change[0]))
    ]
    rows = list({row["lsn"]: row for row in rows}.values())
    accounts = pa.Table.from_pylist(rows, schema=ACCOUNTS)
    outcomes = pl.DataFrame(
        [("a", hour(at), 10 * (at + delay) + 5, None) for at, delay in events],
        schema={
            "account": pl.String,
            "event_time": pl.Datetime("us", "UTC"),
            "request_lsn": pl.Int64,
            "completion_lsn": pl.Int64,
        },
        orient="row",
    )
    bounds = BillingDays(accounts).periods(outcomes, period, seen_from=10**6)
    names = bounds.select("first_day").n_unique()
    assert bounds.n_unique() == names
    assert (bounds["starts_at"] < bounds["ends_at"]).all()
    known_from = next((row["lsn"] for row in rows if not row["deleted"]), 10**6)
    known = bounds.with_columns(outcomes["event_time"]).filter(outcomes["request_lsn"] > known_from)
    assert known.filter(pl.col("event_time").is_between("starts_at", "ends_at", closed="left")).height == len(known)
