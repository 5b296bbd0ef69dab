"""Tiers and packages in the catalog: by a file, by SQL, compared with other prices, ended, and refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from psycopg.types.json import Jsonb

from catalog.change import Change
from catalog.deletion import delete_row
from catalog.file import CatalogFile, parse_catalog
from catalog.price_jumps import PricesJump
from catalog.reconciliation import outdated
from catalog.store import store, stored
from deployment.errors import CannotRun
from jobs.queries.contracts import ContractQuery, contract_rows
from jobs.streams import CatalogTopic
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.pipelines.test_price_jumps import stored as prices_of
from tests.rules.test_price_tiers import documents
from tests.specifications.pricing import usual_unit_price

PRICE = {"plan": "p", "model": "m*", "meter": "input_tokens", "currency": "EUR"}
BEGINS = {"effective_from": "2026-01-01T00:00:00Z"}
GRADUATED: dict[str, Any] = {
    "kind": "graduated",
    "tiers": [{"up_to": "1000000", "unit_price": "2.5", "per": 1000000}, {"unit_price": "2", "per": 1000000}],
}
TERMS = {
    "kind": "graduated",
    "tiers": [{"up_to": "1000000", "unit_price": "0.0000025"}, {"unit_price": "0.000002"}],
}


def catalog(*prices: dict[str, Any]) -> CatalogFile:
    account = {"account": "a", "name": "A", "plan": "p", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z"}
    rows = [{**PRICE, **BEGINS, **price} for price in prices]
    return parse_catalog(json.dumps({"plans": [{"plan": "p", "name": "P"}], "accounts": [account], "prices": rows}))


def terms_of(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT unit_price, terms FROM catalog.prices ORDER BY effective_from").fetchall()


def test_a_file_with_tiers_is_stored_once_and_names_no_unit_price(database: str) -> None:
    changes = store(database, catalog(GRADUATED))
    (price,) = (change for change in changes if "unit_price" in change.after)
    assert (price.op, price.after["unit_price"]) == ("c", None)
    assert price.after["terms"] == PriceTerms.of(TERMS).text
    assert terms_of(database) == [(None, TERMS)]
    assert {change.op for change in store(database, catalog(GRADUATED))} == {"r"}
    with psycopg.connect(database, row_factory=psycopg.rows.dict_row) as connection:
        (paid,) = contract_rows(connection, ContractQuery())
    assert (paid["unit_price"], paid["terms"]) == (None, "graduated: 0.0000025 up to 1000000, 0.000002 above")


def test_a_price_changes_between_a_unit_price_and_tiers(database: str) -> None:
    store(database, catalog({"unit_price": "0.000003"}))
    assert {change.op for change in store(database, catalog(GRADUATED))} >= {"u"}
    assert terms_of(database) == [(None, TERMS)]
    store(database, catalog({"unit_price": "0.000003"}))
    assert [terms for _, terms in terms_of(database)] == [None]


def test_a_deleted_price_keeps_its_tiers_until_it_ends(database: str) -> None:
    store(database, catalog(GRADUATED))
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM catalog.prices")
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT unit_price, terms FROM catalog.ended_prices").fetchall()
    assert found == [(None, TERMS)]


@pytest.mark.parametrize("costs", [{"kind": "volume", "tiers": [{"unit_price": "0"}, {"unit_price": "3"}]}, GRADUATED])
def test_tiers_a_hundred_times_above_the_price_before_need_confirmation(database: str, costs: dict[str, Any]) -> None:
    store(database, catalog({"unit_price": "0.0000025"}))
    tiers = [{**tier, "per": 1} for tier in costs["tiers"]]
    tiers[0]["up_to"] = "1000"
    dear = {**costs, "tiers": tiers, "effective_from": "2026-02-01T00:00:00Z"}
    before = prices_of(database)
    with pytest.raises(PricesJump, match=r"the price before it is 0\.0000025"):
        store(database, catalog(dear))
    assert prices_of(database) == before
    store(database, catalog(dear), confirms=True)
    assert len(prices_of(database)) == 2


def put(database: str, terms: Any, **more: Any) -> None:
    write(database, "catalog.prices", {**PRICE, **BEGINS, "unit_price": None, "terms": Jsonb(terms), **more})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=documents)
def test_sql_takes_what_a_file_takes_and_compares_the_same_price(database: str, document: dict[str, Any]) -> None:
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT catalog.price_terms_problem(%(it)s), catalog.usual_unit_price(%(it)s)", {"it": Jsonb(document)}
        ).fetchone()
    assert found == (None, usual_unit_price(PriceTerms.of(document)))


WRONG: list[Any] = [
    [],
    {"kind": "unit"},
    {"kind": "flat"},
    {"kind": "graduated", "tiers": []},
    {"kind": "graduated", "tiers": {}},
    {"kind": "graduated", "tiers": [{"unit_price": "1"}] * 101},
    {"kind": "graduated", "tiers": [{}]},
    {"kind": "graduated", "tiers": [1]},
    {"kind": "graduated", "tiers": [{"unit_price": "-1"}]},
    {"kind": "graduated", "tiers": [{"unit_price": "NaN"}]},
    {"kind": "graduated", "tiers": [{"unit_price": True}]},
    {"kind": "graduated", "tiers": [{"unit_price": "0.0000000000001"}]},
    {"kind": "graduated", "tiers": [{"unit_price": "100000000"}]},
    {"kind": "graduated", "tiers": [{"unit_price": "1", "up_to": "5"}]},
    {"kind": "graduated", "tiers": [{"unit_price": "1"}, {"unit_price": "1"}]},
    {"kind": "graduated", "tiers": [{"up_to": "0", "unit_price": "1"}, {"unit_price": "1"}]},
    {"kind": "volume", "tiers": [{"up_to": 5, "unit_price": 1}, {"up_to": "5", "unit_price": 1}, {"unit_price": 1}]},
    {"kind": "volume", "tiers": [{"unit_price": "1", "per": 5}]},
    {"kind": "volume", "tiers": [{"unit_price": "1"}], "package_size": "1"},
    {"kind": "package", "package_size": "0", "package_price": "1"},
    {"kind": "package", "package_size": "0.0000001", "package_price": "1"},
    {"kind": "package", "package_price": "1"},
    {"kind": "package", "package_size": "1", "package_price": None},
]


@pytest.mark.parametrize("terms", WRONG, ids=lambda terms: json.dumps(terms)[:60])
def test_sql_refuses_what_a_file_refuses(database: str, terms: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        PriceTerms.of(terms)
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT catalog.price_terms_problem(%s)", [Jsonb(terms)]).fetchone()
    assert found is not None
    assert found[0]


def test_numbers_that_sql_wrote_without_quotes_are_read_to_the_last_digit(database: str, tmp_path: Path) -> None:
    store(database, catalog())
    tiers = [{"up_to": 1000000.5, "unit_price": 1e-6}, {"unit_price": 0.1}]
    put(database, {"kind": "graduated", "tiers": tiers})
    exact = [{"up_to": "1000000.5", "unit_price": "0.000001"}, {"unit_price": "0.1"}]
    terms = PriceTerms.of({"kind": "graduated", "tiers": exact})
    with psycopg.connect(database, row_factory=psycopg.rows.dict_row) as connection:
        (paid,) = contract_rows(connection, ContractQuery())
    assert paid["terms"] == terms.words
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    (row,) = stored(database, [Change(CatalogTopic.PRICES, {**PRICE, **BEGINS}, {}, "r", begins)])
    assert row.after["terms"] == terms.text
    assert outdated(str(tmp_path), database, datetime.now(UTC) + timedelta(days=1)) == 2, "the price and the account"
    key = {**PRICE, "effective_from": begins}
    deleted = delete_row(database, CatalogTopic.PRICES, key, None, "ann", backdates=True)
    assert deleted.change.after["terms"] == terms.text


def test_terms_and_a_unit_price_exclude_each_other(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    with pytest.raises(psycopg.errors.CheckViolation, match="stand beside unit_price or per"):
        put(database, TERMS, unit_price=1)
    with pytest.raises(psycopg.errors.NotNullViolation, match="it must have one, or terms"):
        write(database, "catalog.prices", {**PRICE, **BEGINS, "unit_price": None})
    with pytest.raises(psycopg.errors.CheckViolation, match="stand beside an alias"):
        put(database, TERMS, model='x{"=":"m"}', meter="requests", currency="XXX")


def test_a_meter_of_whole_periods_takes_a_unit_price_only(database: str) -> None:
    row = {"meter": "peak", "unit": "u", "sums": "c", "aggregation": "max", "period": "day", "is_declared": True}
    write(database, "meters", row)
    with pytest.raises(CannotRun, match="which bills whole periods: it can only have a unit_price"):
        store(database, catalog({**GRADUATED, "meter": "peak"}))
