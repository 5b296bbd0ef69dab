"""What no price can be, whoever edits it with SQL: the database says why, and nothing is changed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

PRICE = {
    "plan": "p",
    "model": "dall-23a",
    "meter": "requests",
    "unit_price": "0.04",
    "currency": "USD",
    "effective_from": "2026-01-01 00:00Z",
}
_INSERT = (
    "INSERT INTO catalog.prices (plan, model, meter, unit_price, currency, effective_from) VALUES "
    "(%(plan)s, %(model)s, %(meter)s, %(unit_price)s::numeric, %(currency)s, %(effective_from)s::timestamptz)"
)


@pytest.fixture
def prices(database: str) -> str:
    """The address of a database with one price."""
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P')")
        connection.execute(_INSERT, PRICE)
    return database


def stored(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT model, unit_price::text FROM catalog.prices ORDER BY model").fetchall()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"unit_price": "NaN"}, "it must be less than 100000000"),
        ({"unit_price": "Infinity"}, "it must be less than 100000000"),
        ({"unit_price": "-1"}, "unit_price"),
        ({"unit_price": "0.0000000000375"}, "it must have at most 12 decimals"),
        ({"meter": "input_token"}, "input_token"),
        ({"effective_from": "infinity"}, "effective_from"),
        ({"effective_from": "12026-01-01 00:00Z"}, "effective_from"),
        ({"currency": "usd"}, "currency"),
        ({"plan": "nobody's"}, "plan"),
    ],
    ids=str,
)
def test_a_price_that_cannot_be_billed_is_refused_by_the_database(prices: str, wrong: dict[str, str], why: str) -> None:
    before = stored(prices)
    with pytest.raises(psycopg.errors.DatabaseError, match=why), psycopg.connect(prices) as connection:
        connection.execute(_INSERT, {**PRICE, "model": "another", **wrong})
    assert stored(prices) == before


@pytest.mark.parametrize("unit_price", ["NaN", "Infinity", "-1"])
def test_an_update_cannot_make_a_price_unbillable(prices: str, unit_price: str) -> None:
    before = stored(prices)
    with pytest.raises(psycopg.errors.DatabaseError), psycopg.connect(prices) as connection:
        connection.execute("UPDATE catalog.prices SET unit_price = %s::numeric", [unit_price])
    assert stored(prices) == before


def test_a_users_own_columns_however_large_do_not_change_a_price(prices: str) -> None:
    with psycopg.connect(prices) as connection:
        connection.execute("ALTER TABLE catalog.prices ADD COLUMN notes jsonb")
        connection.execute("UPDATE catalog.prices SET notes = to_jsonb(repeat('x', 200000))")
    assert stored(prices) == [("dall-23a", "0.040000000000")]
