"""Method: the frames that Spark searches against the as-of rule, on random histories; and the rule by example."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.catalog_versions import account_rows, price_rows
from jobs.streams import ACCOUNTS, PRICES
from metering.instants import EPOCH
from metering.meters import Meter
from metering.pricing import Version, account_as_of, price_as_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def history(*changes: tuple[int, int | None]) -> list[Version[int]]:
    """(effective day, value or None for a deletion), with lsn 10, 20, …"""
    return [Version(10 * n, day(effective), value) for n, (effective, value) in enumerate(changes, start=1)]


histories = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(1, 9), st.integers(1, 9))), max_size=8
).map(lambda changes: history(*changes))


def picked(row: dict[str, Any], name: str, settled: str, event_time: datetime, decided_lsn: int) -> int | None:
    """The lsn of the version that `price` takes from a row of the frame: as its SQL, in Python."""
    event_us = (event_time - EPOCH) // timedelta(microseconds=1)
    if row[f"{settled}_us"] is not None and decided_lsn > row[f"{settled}_lsn"] and event_us >= row[f"{settled}_us"]:
        current = row[f"{name}_current"]
        return _lsn_held(current)
    for version in row[f"{name}_versions"] or []:
        is_superseded = version["superseded_lsn"] is not None and version["superseded_lsn"] < decided_lsn
        if version["lsn"] < decided_lsn and not is_superseded and version["effective_us"] <= event_us:
            return _lsn_held(version)
    return None


def _lsn_held(version: dict[str, Any] | None) -> int | None:
    """A deletion, which holds nothing, is a version without a plan."""
    return None if version is None or version.get("plan", "") is None else int(version["lsn"])


def lsn_of(version: Version[int] | None) -> int | None:
    return None if version is None else version.lsn


@settings(deadline=None, max_examples=60)
@given(histories)
def test_differential_the_frame_gives_the_accounts_version_of_the_rule(versions: list[Version[int]]) -> None:
    changes = [
        {"lsn": v.lsn, "account": "a", "effective_from": v.effective_from}
        | ({"plan": None, "deleted": True} if v.value is None else {"plan": str(v.value), "deleted": False})
        for v in versions
    ]
    rows = account_rows(pa.Table.from_pylist(changes, schema=ACCOUNTS)).to_pylist()
    assert len(rows) == bool(versions)
    for row in rows:
        for event_time in (day(-1), *map(day, range(4))):
            for decided_lsn in range(5, 80, 5):
                expected = lsn_of(account_as_of(versions, event_time, decided_lsn))
                assert picked(row, "contract", "settled", event_time, decided_lsn) == expected


@settings(deadline=None, max_examples=60)
@given(st.fixed_dictionaries({Meter.REQUESTS: histories, Meter.INPUT_TOKENS: histories}))
def test_differential_the_frame_gives_the_prices_version_of_the_rule(meters: dict[Meter, list[Version[int]]]) -> None:
    changes = [
        {"lsn": v.lsn + (meter is Meter.REQUESTS), "plan": "p", "model": "m", "meter": meter.value, "currency": "USD"}
        | {"effective_from": v.effective_from, "unit_price": v.value and Decimal(v.value), "deleted": v.value is None}
        for meter, versions in meters.items()
        for v in versions
    ]
    rows = price_rows(pa.Table.from_pylist(changes, schema=PRICES)).to_pylist()
    assert len(rows) == any(meters.values())
    for row in rows:
        for meter, versions in meters.items():
            shifted = [Version(v.lsn + (meter is Meter.REQUESTS), v.effective_from, v.value) for v in versions]
            for event_time in (day(-1), *map(day, range(4))):
                for decided_lsn in range(5, 80, 5):
                    expected = lsn_of(price_as_of(shifted, event_time, decided_lsn))
                    assert picked(row, meter, "prices_settled", event_time, decided_lsn) == expected


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


def test_an_account_made_again_holds_from_its_own_time_and_not_before() -> None:
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
def test_a_change_that_was_announced_and_taken_back_never_holds(since: int) -> None:
    """The catalog has one row for an account: what no longer stands there must be on no bill."""
    versions = history((0, 1), (5, 2), (since, 1))
    assert lsn_of(account_as_of(versions, day(6), 99)) == 30
    assert lsn_of(account_as_of(versions, day(6), 30)) == 20, "decided while it was announced"


def test_an_account_made_again_from_before_its_deletion_on_takes_the_place_of_the_old_one_from_there() -> None:
    versions = history((0, 1), (3, 2), (5, None), (2, 4))
    assert lsn_of(account_as_of(versions, day(1), 99)) == 10
    assert [lsn_of(account_as_of(versions, day(number), 99)) for number in (2, 4, 6)] == [40, 40, 40]


def test_a_price_holds_from_its_instant_to_the_next_one() -> None:
    versions = history((0, 1), (2, 2))
    just_before = day(2) - timedelta(microseconds=1)
    assert lsn_of(price_as_of(versions, just_before, 99)) == 10
    assert lsn_of(price_as_of(versions, day(2), 99)) == 20
    assert price_as_of(versions, day(-1), 99) is None


def test_a_backdated_price_is_seen_only_by_what_is_decided_after_it() -> None:
    versions = history((0, 1), (0, 2))
    assert lsn_of(price_as_of(versions, day(1), 20)) == 10
    assert lsn_of(price_as_of(versions, day(1), 21)) == 20


def test_a_withdrawn_price_leaves_the_one_before_it_in_force() -> None:
    versions = history((0, 1), (2, 2), (2, None))
    assert lsn_of(price_as_of(versions, day(3), 30)) == 20
    assert lsn_of(price_as_of(versions, day(3), 31)) == 10
