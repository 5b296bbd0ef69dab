"""Property: a catalog change that ingestion accepts becomes a row that the version tables hold, whatever it says."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.joins.catalog_versions import account_versions, price_versions
from jobs.journal.catalog_changes import parse_change
from jobs.journal.catalog_problems import change_problem
from jobs.streams import ACCOUNTS, PRICES, CatalogTopic

NUMBER = "@number@"
"""Stands in a document where a JSON number is written as it is, which Python's writer would change."""

exponents = st.integers(-60, 60) | st.sampled_from([-(10**6), 10**6, -(10**18), 10**18, 10**30])
digits = st.text("0123456789", min_size=1, max_size=50).map(lambda text: text.lstrip("0") or "0")
numbers = st.builds(
    lambda sign, whole, decimals, exponent: f"{sign}{whole}{decimals}{exponent}",
    st.sampled_from(["", "-"]),
    st.just("0") | digits,
    st.just("") | st.text("0123456789", min_size=1, max_size=50).map(lambda text: f".{text}"),
    st.just("") | exponents.map(lambda exponent: f"e{exponent}"),
)
texts = st.text(max_size=8) | st.sampled_from(["p", "EUR", "\ud800", "\udfff\ud800", "x" * 512, "ß" * 257, "a\0", ""])
instants = st.sampled_from(
    [
        None,
        "2026-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59.999999-23:59",
        "2026-W01-1T00:00:00Z",
        "\ud800",
    ]
)
AUTHORS: dict[str, st.SearchStrategy[Any]] = {"changed_by": st.none() | texts, "changed_at": instants}
milliseconds = st.integers(-1, 2**64) | st.sampled_from([253_402_300_799_999, 253_402_300_800_000])


def documents(fields: dict[str, st.SearchStrategy[Any]], number: st.SearchStrategy[str] = numbers) -> Any:
    """Debezium envelopes of a change to those fields; a field that is NUMBER is written as a JSON number."""
    state = st.fixed_dictionaries(fields)
    return st.builds(_document, state, st.sampled_from("cud"), milliseconds, number)


def _document(state: dict[str, Any], op: str, ts_ms: int, number: str) -> bytes:
    before, after = (state, None) if op == "d" else (None, state)
    text = json.dumps({"before": before, "after": after, "op": op, "ts_ms": ts_ms})
    return text.replace(f'"{NUMBER}"', number).encode()


ACCOUNT_CHANGES = documents(
    {
        "account": texts,
        "name": st.none() | texts,
        "plan": st.just("p") | texts,
        "currency": st.just("EUR") | texts,
        "timezone": st.none() | texts,
        "effective_from": instants,
        **AUTHORS,
    }
)
PRICE_CHANGES = documents(
    {
        "plan": st.just("p") | texts,
        "model": st.just("m") | texts,
        "meter": st.just("requests") | texts,
        "currency": st.just("EUR"),
        "effective_from": instants,
        "unit_price": numbers | st.just(NUMBER) | texts,
        **AUTHORS,
    }
)


def stored(topic: CatalogTopic, schema: pa.Schema, value: bytes) -> pa.Table | None:
    """The change as the version table keeps it; None when ingestion rejects it."""
    if change_problem(topic, None, value) is not None:
        return None
    table = pa.Table.from_pylist([parse_change(topic, value, 1)], schema=schema)
    for text in (text for column in table.columns for text in column.to_pylist() if isinstance(text, str)):
        assert len(text.encode()) <= 512
        assert "\0" not in text
    return table


@settings(deadline=None)
@given(ACCOUNT_CHANGES)
def test_an_accepted_account_is_a_row_of_the_version_table(value: bytes) -> None:
    rows = stored(CatalogTopic.ACCOUNTS, ACCOUNTS, value)
    assert rows is None or len(account_versions(rows).every) == 1


@settings(deadline=None)
@given(PRICE_CHANGES)
def test_an_accepted_price_is_a_row_of_the_version_table(value: bytes) -> None:
    rows = stored(CatalogTopic.PRICES, PRICES, value)
    assert rows is None or len(price_versions(rows).every) == 1


def price(unit_price: str) -> bytes:
    state = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR", "unit_price": unit_price}
    return _document(state, "c", 1, "0")


@pytest.mark.parametrize("zero", ["0e50", "0E+1000000", "0e-1000000", "-0"])
def test_nothing_costs_nothing_however_it_is_written(zero: str) -> None:
    rows = stored(CatalogTopic.PRICES, PRICES, price(zero))
    assert rows is not None
    assert rows["unit_price"].to_pylist() == [Decimal(0)]


@settings(deadline=None)
@given(st.integers(0, 10**20 - 1), st.integers(0, 60))
@example(1_000_000_000_000, 33)
def test_an_accepted_price_keeps_its_value(twelfths: int, zeros: int) -> None:
    exact = Decimal(twelfths).scaleb(-12)
    rows = stored(CatalogTopic.PRICES, PRICES, price(f"{exact:f}" + "0" * zeros))
    assert rows is not None
    assert rows["unit_price"].to_pylist() == [exact]


def test_a_name_is_limited_by_its_bytes_as_in_events() -> None:
    state = {"account": "ß" * 256, "plan": "p", "currency": "EUR"}
    assert change_problem(CatalogTopic.ACCOUNTS, None, _document(state, "c", 1, "0")) is None
    longer = {**state, "account": "ß" * 256 + "s"}
    problem = change_problem(CatalogTopic.ACCOUNTS, None, _document(longer, "c", 1, "0"))
    assert problem is not None
    assert "512 bytes" in problem
