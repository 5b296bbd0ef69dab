"""Method: the columns that prices are found by against the as-of rule, on random histories; and the rule by example."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.catalog_versions import Versions, account_versions, price_versions
from jobs.streams import ACCOUNTS, PRICES
from metering.instants import EPOCH
from metering.pricing import Version
from tests.specifications.pricing import account_as_of, price_as_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def day(number: int) -> datetime:
    return START + timedelta(days=number)


Change = tuple[int, int | None] | tuple[int, None, int]


def history(*changes: Change) -> list[Version[int]]:
    """(effective day, value; None: withdrawn) or (effective day, None, day on which it ends), with lsn 10, 20, …"""
    return [
        Version(10 * n, day(begins), value, *(day(number) for number in ends))
        for n, (begins, value, *ends) in enumerate(changes, start=1)
    ]


told = st.tuples(st.integers(0, 3), st.integers(1, 9))
ended = st.tuples(st.integers(0, 3), st.none(), st.integers(-1, 4))
withdrawn = st.tuples(st.integers(0, 3), st.none())
histories = st.lists(st.one_of(told, told, withdrawn), max_size=8).map(lambda changes: history(*changes))
histories_of_prices = st.lists(st.one_of(told, told, told, ended, ended, withdrawn), max_size=8).map(
    lambda changes: history(*changes)
)
histories_with_ends = st.lists(st.one_of(told, told, ended), max_size=8).map(lambda changes: history(*changes))


def lsn_of(version: Version[int] | None) -> int | None:
    return None if version is None else version.lsn


MOMENTS = [(event_time, decided) for event_time in (day(-1), *map(day, range(5))) for decided in range(5, 80, 5)]


LOOKS_BACK_FROM = 55


def found(versions: Versions, key: dict[str, str], max_compared: int, seen_from: int | None = None) -> list[int | None]:
    """The lsn of the version that holds for a key at each of MOMENTS; one without a plan holds nothing."""
    events_us = [(event_time - EPOCH) // timedelta(microseconds=1) for event_time, _ in MOMENTS]
    asked = pl.DataFrame({"event_us": events_us, "decided_lsn": [decided for _, decided in MOMENTS]})
    rows = replace(versions, max_compared=max_compared).as_of(
        asked.with_columns(pl.lit(v).alias(n) for n, v in key.items()), seen_from
    )
    assert rows.select(asked.columns).equals(asked), "the rows stay in their order"
    value = versions.values[0]
    return [row["version_lsn"] if row[value] is not None else None for row in rows.iter_rows(named=True)]


@pytest.mark.long
@settings(deadline=None, max_examples=100)
@given(histories, st.sampled_from([1, 20, 10_000]))
def test_differential_the_accounts_version_is_the_one_of_the_rule(versions: list[Version[int]], portion: int) -> None:
    changes = [
        {"lsn": v.lsn, "account": "a", "effective_from": v.effective_from}
        | ({"plan": None, "deleted": True} if v.value is None else {"plan": str(v.value), "deleted": False})
        for v in versions
    ]
    wanted = [lsn_of(account_as_of(versions, event_time, decided)) for event_time, decided in MOMENTS]
    table = account_versions(pa.Table.from_pylist(changes, schema=ACCOUNTS))
    assert found(table, {"account": "a"}, portion) == wanted
    later = [lsn_of(account_as_of(versions, at, max(decided, LOOKS_BACK_FROM))) for at, decided in MOMENTS]
    assert found(table, {"account": "a"}, portion, LOOKS_BACK_FROM) == later
    assert found(table, {"account": "another"}, portion) == [None] * len(MOMENTS)


@pytest.mark.long
@settings(deadline=None, max_examples=100)
@given(
    st.fixed_dictionaries({"requests": histories_of_prices, "gpu_seconds": histories_of_prices}),
    st.sampled_from([1, 20, 10_000]),
)
def test_differential_the_prices_version_is_the_one_of_the_rule(
    meters: dict[str, list[Version[int]]], portion: int
) -> None:
    shifted = {
        meter: [replace(v, lsn=v.lsn + (meter == "requests")) for v in versions] for meter, versions in meters.items()
    }
    changes = [
        {"lsn": v.lsn, "plan": "p", "model": "m", "meter": meter, "currency": "USD"}
        | {"effective_from": v.effective_from, "unit_price": v.value and Decimal(v.value), "deleted": v.value is None}
        | {"ends_at": v.ends_at}
        for meter, versions in shifted.items()
        for v in versions
    ]
    table = price_versions(pa.Table.from_pylist(changes, schema=PRICES))
    for meter, versions in shifted.items():
        wanted = [lsn_of(price_as_of(versions, event_time, decided)) for event_time, decided in MOMENTS]
        key = {"plan": "p", "model": "m", "meter": meter, "currency": "USD"}
        assert found(table, key, portion) == wanted
        later = [lsn_of(price_as_of(versions, at, decided, LOOKS_BACK_FROM)) for at, decided in MOMENTS]
        assert found(table, key, portion, LOOKS_BACK_FROM) == later


def test_an_accounts_first_version_holds_from_the_beginning_of_time() -> None:
    versions = history((2, 1), (3, 2))
    assert lsn_of(account_as_of(versions, day(-400), 99)) == 10
    assert lsn_of(account_as_of(versions, day(3), 99)) == 20


def test_an_account_that_is_not_known_yet_has_no_version() -> None:
    assert account_as_of(history((0, 1)), day(1), 10) is None


def test_a_deletion_ends_an_account_from_its_own_time_on_and_leaves_its_past() -> None:
    versions = history((0, 1), (2, None))
    just_before = day(2) - timedelta(microseconds=1)
    assert lsn_of(account_as_of(versions, just_before, 99)) == 10
    assert account_as_of(versions, day(2), 99) is None
    assert lsn_of(account_as_of(versions, day(2), 20)) == 10, "decided before the deletion was known"


def test_a_recreated_account_holds_from_its_own_start() -> None:
    versions = history((0, 1), (2, None), (5, 3))
    assert lsn_of(account_as_of(versions, day(1), 99)) == 10
    assert account_as_of(versions, day(3), 99) is None
    assert lsn_of(account_as_of(versions, day(5), 99)) == 30


def test_a_deletion_also_ends_a_version_that_was_yet_to_come() -> None:
    versions = history((0, 1), (5, 2), (3, None))
    assert lsn_of(account_as_of(versions, day(2), 99)) == 10
    assert account_as_of(versions, day(6), 99) is None
    assert lsn_of(account_as_of(versions, day(6), 30)) == 20


@pytest.mark.parametrize("since", [0, 2], ids=["as it was before", "from now on"])
def test_a_planned_change_that_is_withdrawn_never_applies(since: int) -> None:
    """The catalog has one row for an account: what no longer stands there must be on no bill."""
    versions = history((0, 1), (5, 2), (since, 1))
    assert lsn_of(account_as_of(versions, day(6), 99)) == 30
    assert lsn_of(account_as_of(versions, day(6), 30)) == 20, "decided while it was announced"


def test_a_recreated_account_replaces_the_old_one_from_its_start() -> None:
    versions = history((0, 1), (3, 2), (5, None), (2, 4))
    assert lsn_of(account_as_of(versions, day(1), 99)) == 10
    assert [lsn_of(account_as_of(versions, day(number), 99)) for number in (2, 4, 6)] == [40, 40, 40]


def test_a_price_holds_from_its_instant_to_the_next_one() -> None:
    versions = history((0, 1), (2, 2))
    just_before = day(2) - timedelta(microseconds=1)
    assert lsn_of(price_as_of(versions, just_before, 99)) == 10
    assert lsn_of(price_as_of(versions, day(2), 99)) == 20
    assert price_as_of(versions, day(-1), 99) is None


def test_a_backdated_price_applies_only_to_later_decisions() -> None:
    versions = history((0, 1), (0, 2))
    assert lsn_of(price_as_of(versions, day(1), 20)) == 10
    assert lsn_of(price_as_of(versions, day(1), 21)) == 20


JUST = timedelta(microseconds=1)


def test_a_deleted_price_ends_and_its_predecessor_does_not_continue() -> None:
    versions = history((0, 1), (1, 2), (1, None, 3))
    assert lsn_of(price_as_of(versions, day(3) - JUST, 99)) == 20
    assert price_as_of(versions, day(3), 99) is None
    assert lsn_of(price_as_of(versions, day(3), 30)) == 20, "decided before the deletion was known"


def test_a_new_price_begins_where_a_deleted_one_has_ended() -> None:
    versions = history((0, 1), (0, None, 1), (2, 3))
    assert [lsn_of(price_as_of(versions, day(number), 99)) for number in range(4)] == [10, None, 30, 30]


@pytest.mark.parametrize("ends", [0, 1], ids=["before it began", "when it began"])
def test_a_price_deleted_before_it_begins_never_applies_and_its_predecessor_continues(ends: int) -> None:
    versions = history((0, 1), (1, 2), (1, None, ends))
    assert [lsn_of(price_as_of(versions, day(number), 99)) for number in range(3)] == [10, 10, 10]


def test_deleting_a_superseded_price_changes_nothing() -> None:
    versions = history((0, 1), (1, 2), (0, None, 3))
    assert [lsn_of(price_as_of(versions, day(number), 99)) for number in range(4)] == [10, 20, 20, 20]


def test_a_restored_price_applies_from_its_beginning() -> None:
    versions = history((0, 1), (0, None, 1), (0, 2))
    assert [lsn_of(price_as_of(versions, day(number), 99)) for number in range(3)] == [30, 30, 30]
    again = history((0, 1), (0, None, 1), (0, 2), (0, None, 2))
    assert [lsn_of(price_as_of(again, day(number), 99)) for number in range(3)] == [30, 30, None]


def test_a_deletion_of_an_unpublished_row_ends_nothing() -> None:
    versions = history((0, 1), (1, None, 2))
    assert [lsn_of(price_as_of(versions, day(number), 99)) for number in range(4)] == [10, 10, 10, 10]


def test_an_audit_knows_when_a_price_ended() -> None:
    versions = history((0, 1), (1, 2), (1, None, 2))
    assert lsn_of(price_as_of(versions, day(2) - JUST, 25, seen_from=99)) == 20, "it was in force until then"
    assert price_as_of(versions, day(2), 25, seen_from=99) is None, "it was not when that occurred"
    never = history((0, 1), (1, 2), (1, None, 0))
    assert lsn_of(price_as_of(never, day(2), 25, seen_from=99)) == 10, "it had never begun"


@settings(deadline=None, max_examples=60)
@given(histories_with_ends)
def test_property_repricing_gives_the_same_price_at_any_time(versions: list[Version[int]]) -> None:
    for event_time in (day(-1), *map(day, range(5))):
        whenever = {lsn_of(price_as_of(versions, event_time, decided, seen_from=999)) for decided in range(5, 95, 5)}
        assert whenever == {lsn_of(price_as_of(versions, event_time, 999))}


@settings(deadline=None, max_examples=60)
@given(histories_with_ends)
def test_oracle_a_price_is_its_row_for_as_long_as_the_catalog_had_it(versions: list[Version[int]]) -> None:
    """Every instant by itself, from the last word on each row: no row is asked that did not begin last."""
    rows: dict[datetime, tuple[int, datetime | None]] = {}
    for version in versions:
        if version.value is not None:
            rows[version.effective_from] = version.lsn, None
        elif version.effective_from in rows:
            rows[version.effective_from] = rows[version.effective_from][0], version.ends_at
    began = {begins: row for begins, row in rows.items() if row[1] is None or row[1] > begins}
    for event_time in (day(-1), *map(day, range(5))):
        lsn, ends_at = began.get(max((at for at in began if at <= event_time), default=event_time), (None, None))
        expected = None if ends_at is not None and ends_at <= event_time else lsn
        assert lsn_of(price_as_of(versions, event_time, 999)) == expected


def test_a_withdrawn_price_leaves_its_predecessor_effective() -> None:
    versions = history((0, 1), (2, 2), (2, None))
    assert lsn_of(price_as_of(versions, day(3), 30)) == 20
    assert lsn_of(price_as_of(versions, day(3), 31)) == 10


def test_an_audit_sees_a_price_that_came_late_and_no_withdrawal() -> None:
    late, withdrawn = history((0, 1), (0, 2)), history((0, 1), (0, None))
    assert lsn_of(price_as_of(late, day(1), 15, seen_from=99)) == 20
    assert lsn_of(price_as_of(late, day(1), 15, seen_from=20)) == 10
    assert lsn_of(price_as_of(withdrawn, day(1), 15, seen_from=99)) == 10, "it was in force then"
    assert price_as_of(withdrawn, day(1), 25, seen_from=99) is None, "it was withdrawn before"
