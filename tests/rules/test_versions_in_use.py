"""Method: versions told and asked for in any order; the keys at hand say what all versions together say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.catalog_versions import PRICE_KEY, Versions, account_versions, price_versions
from jobs.joins.versions_in_use import MAX_PARTS, VersionsInUse
from jobs.streams import ACCOUNTS, PRICES

START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
PLANS = ("basic", "pro", "negotiated")

told = st.lists(st.tuples(st.sampled_from(PLANS), st.integers(0, 3), st.booleans()), min_size=1, max_size=4)
asked = st.lists(
    st.tuples(st.sampled_from([*PLANS, "unknown", None]), st.integers(-1, 4), st.integers(0, 40)), max_size=4
)


def prices(changes: list[tuple[str, int, bool]], first_lsn: int = 1) -> pa.Table:
    """(plan, microsecond after START, whether it is deleted) → versions, an lsn after the other."""
    rows = [
        {"lsn": first_lsn + n, "plan": plan, "model": "m", "meter": "requests", "currency": "EUR", "deleted": deleted}
        | {"effective_from": START + timedelta(microseconds=at), "unit_price": None if deleted else Decimal(n + 1)}
        for n, (plan, at, deleted) in enumerate(changes)
    ]
    return pa.Table.from_pylist(rows, schema=PRICES)


def accounts(changes: list[tuple[str, int, bool]], first_lsn: int = 1) -> pa.Table:
    rows = [
        {"lsn": first_lsn + n, "account": name, "deleted": deleted, "plan": None if deleted else f"p{n}"}
        | {"effective_from": START + timedelta(microseconds=at), "currency": None if deleted else "EUR"}
        for n, (name, at, deleted) in enumerate(changes)
    ]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def question(key: dict[str, Any], at: int, decided_lsn: int) -> dict[str, Any]:
    return {**key, "event_us": START_US + at, "decided_lsn": decided_lsn}


SCHEMA = {**dict.fromkeys((*PRICE_KEY, "account"), pl.String), "event_us": pl.Int64, "decided_lsn": pl.Int64}


@pytest.mark.long
@settings(max_examples=100)
@given(
    st.lists(st.tuples(told, asked), min_size=1, max_size=6),
    st.sampled_from([0, 1, 50_000]),
    st.sampled_from([None, 12]),
)
def test_reading_only_the_needed_keys_gives_the_same_versions(
    steps: list[tuple[list[tuple[str, int, bool]], list[tuple[str | None, int, int]]]],
    max_idle: int,
    seen_from: int | None,
) -> None:
    """Whatever was told or asked before, and whatever was forgotten meanwhile."""
    every = {name: make([]) for name, make in (("prices", prices), ("accounts", accounts))}
    in_use = {
        "prices": VersionsInUse(every["prices"], PRICE_KEY, price_versions, max_idle),
        "accounts": VersionsInUse(every["accounts"], ("account",), account_versions, max_idle),
    }
    next_lsn = 1
    for changes, questions in steps:
        for name, make, ready in (("prices", prices, price_versions), ("accounts", accounts, account_versions)):
            news = make(changes, next_lsn)
            assert news.to_pylist() == [
                row for row in _added(in_use[name], news).to_pylist() if row["lsn"] >= next_lsn
            ], "whoever looks for the versions of a key finds them all"
            every[name] = pa.concat_tables([every[name], news])
            rows = pl.DataFrame(
                [
                    question(
                        {"account": key}
                        if name == "accounts"
                        else {"plan": key, "model": "m", "meter": "requests", "currency": "EUR"},
                        at,
                        lsn,
                    )
                    for key, at, lsn in questions
                ],
                schema=SCHEMA,
            )
            assert in_use[name].as_of(rows, seen_from).equals(ready(every[name]).as_of(rows, seen_from))
        next_lsn += len(changes)


def _added(in_use: VersionsInUse, news: pa.Table) -> pa.Table:
    in_use.add(news)
    return in_use.of(news)


def test_versions_of_unused_keys_are_never_indexed() -> None:
    """A million of them must not cost the batch whose account has ten."""
    ready: list[set[str]] = []

    def counted(rows: pa.Table) -> Versions:
        ready.append(set(rows["plan"].to_pylist()))
        return price_versions(rows)

    in_use = VersionsInUse(prices([(plan, 0, False) for plan in PLANS]), PRICE_KEY, counted)
    key = {"model": "m", "meter": "requests", "currency": "EUR"}
    rows = pl.DataFrame([question({"plan": "pro", **key}, 1, 99)], schema=SCHEMA)
    for first_lsn in range(10, 13):
        assert in_use.as_of(rows)["version_lsn"].to_list() == [2]
        in_use.add(prices([("basic", 2, False)], first_lsn))
    assert ready == [set(), {"pro"}], "only once, as nothing of it has changed"
    in_use.add(prices([("pro", 1, False)], 20))
    assert in_use.as_of(rows)["version_lsn"].to_list() == [20]
    assert ready[2:] == [{"pro"}]


def test_keys_that_were_used_long_ago_are_released() -> None:
    """A driver that has run for a year must not have made ready what a year has asked for."""
    many = [f"plan-{number}" for number in range(20)]
    in_use = VersionsInUse(prices([(plan, 0, False) for plan in many]), PRICE_KEY, price_versions, max_idle=5)
    key = {"model": "m", "meter": "requests", "currency": "EUR"}
    for plan in many:
        rows = pl.DataFrame([question({"plan": plan, **key}, 0, 99)], schema=SCHEMA)
        assert in_use.as_of(rows)["unit_price"].null_count() == 0
        assert len(in_use._in_use.every) <= 5


def test_many_single_changes_are_put_together() -> None:
    in_use = VersionsInUse(prices([]), PRICE_KEY, price_versions)
    for number in range(3 * MAX_PARTS):
        in_use.add(prices([("pro", number % 4, False)], number + 1))
        assert in_use._every["lsn"].num_chunks <= MAX_PARTS
    assert in_use.of(prices([("pro", 0, False)]))["lsn"].to_pylist() == list(range(1, 3 * MAX_PARTS + 1))
