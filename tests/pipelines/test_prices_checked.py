"""The database refuses a price that it would have to round, and one that nobody could ever be billed by."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from alembic import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.file import CatalogFileError, parse_catalog
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.schema import migrate, migrator
from metering.meters import DEFAULT, Declaration
from tests.database_rows import write

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": JANUARY}
GPU = Declaration("gpu_seconds", "second", "gpu_seconds")


@pytest.fixture
def priced(database: str) -> str:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.prices", {**PRICE, "unit_price": 1})
    return database


@pytest.mark.parametrize("way", ["insert", "update"])
@pytest.mark.parametrize(
    ("unit_price", "why"),
    [
        ("0.0000000000375", "a price of 'm' is 0.0000000000375 a unit: it must have at most 12 decimals"),
        ("0.0000000000375", "at most 12 decimals: write 0.000000000037 or 0.000000000038\n"),
        ("1e-13", "at most 12 decimals: write 0 or 0.000000000001\n"),
        ("99999999.9999999999999", "at most 12 decimals: write 99999999.999999999999\n"),
        ("100000000", "it must be less than 100000000"),
        ("Infinity", "it must be less than 100000000"),
        ("NaN", "it must be less than 100000000"),
    ],
)
def test_a_price_that_would_be_rounded_is_refused_with_a_sentence(
    priced: str, way: str, unit_price: str, why: str
) -> None:
    statement = {
        "insert": "INSERT INTO catalog.prices VALUES ('p', 'm', 'requests', 'USD', now(), %s::numeric)",
        "update": "UPDATE catalog.prices SET unit_price = %s::numeric",
    }[way]
    with psycopg.connect(priced) as connection, pytest.raises(psycopg.Error, match=why):
        connection.execute(statement.encode(), [unit_price])


def put(connection: psycopg.Connection[Any], unit_price: str | None, per: str | None) -> Decimal:
    """A price of another model, as SQL says it and the database has it."""
    connection.execute(
        "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price, per) VALUES"
        " ('p', 'n', 'requests', 'EUR', now(), %s::numeric, %s::numeric) ON CONFLICT"
        " (plan, model, meter, currency, effective_from) DO UPDATE SET unit_price = excluded.unit_price",
        [unit_price, per],
    )
    [(stored, of)] = connection.execute("SELECT unit_price, per FROM catalog.prices WHERE model = 'n'").fetchall()
    assert of is None, "whoever changes the price alone later says one of a unit"
    assert isinstance(stored, Decimal)
    return stored


@pytest.mark.parametrize(
    ("unit_price", "per", "why"),
    [
        ("1", "3", "a price of 'n' is 1 per 3: it must have at most 12 decimals a unit: write 0.999999999999 or 1.000"),
        # As a quotient of Postgres it would have twelve decimals.
        ("100000", "3", "at most 12 decimals a unit: write 99999.999999999999 or 100000.000000000002"),
        ("0.0000001", "1000000", "write 0 or 0.000001\n"),
        ("2.5", "0", "a price of 'n' has per 0: it must be a positive whole number, such as 1000000"),
        ("2.5", "-1", "it must be a positive whole number"),
        ("2.5", "0.5", "it must be a positive whole number"),
        ("2.5", "NaN", "it must be a positive whole number"),
        ("2.5", "Infinity", "it must be a positive whole number"),
        ("100000000000000", "1000000", "is 100000000000000 per 1000000: it must be less than 100000000 a unit"),
        ("NaN", "10", "it must be less than 100000000 a unit"),
        ("-2.5", "1000000", "unit_price"),
        ("-1", "30000000000000", "unit_price"),
        (None, "1000000", "unit_price"),
    ],
)
def test_a_price_per_units_that_cannot_be_stored_exactly_is_refused_with_the_nearest_two(
    priced: str, unit_price: str | None, per: str, why: str
) -> None:
    with psycopg.connect(priced) as connection, pytest.raises(psycopg.Error, match=why):
        put(connection, unit_price, per)


def test_a_price_of_a_million_units_is_stored_as_the_price_of_one(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        assert put(connection, "2.5", "1000000") == Decimal("0.0000025")
        assert put(connection, "2.50", "1000000.0") == Decimal("0.0000025")
        assert put(connection, "3", None) == 3
        connection.execute("UPDATE catalog.prices SET per = 1000000 WHERE model = 'n'")
        assert connection.execute("SELECT unit_price FROM catalog.prices WHERE model = 'n'").fetchall() == [
            (Decimal("0.000003"),)
        ]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.decimals(0, 10**9, places=14) | st.integers(0, 10**24).map(Decimal),
    st.integers(1, 10**7) | st.sampled_from([10**power for power in range(19)]),
)
def test_differential_sql_takes_and_refuses_the_prices_per_units_that_a_file_does(
    priced: str, unit_price: Decimal, per: int
) -> None:
    with psycopg.connect(priced) as connection:
        by_sql = read_by_sql(connection, f"{unit_price:f}", str(per))
        connection.rollback()
    assert by_sql == read_in_a_file(f"{unit_price:f}", str(per))
    if isinstance(by_sql, Decimal):
        assert by_sql * per == unit_price


def read_in_a_file(unit_price: str, per: str) -> Decimal | str | None:
    """The price of one unit, or what it must be."""
    price = {**PRICE, "unit_price": unit_price, "per": per, "effective_from": "2026-01-01T00:00:00Z"}
    try:
        return parse_catalog(json.dumps({"prices": [price]})).prices[0].unit_price
    except CatalogFileError as refused:
        return str(refused).split(": must", 1)[1]


def read_by_sql(connection: psycopg.Connection[Any], unit_price: str, per: str) -> Decimal | str:
    try:
        return put(connection, unit_price, per)
    except psycopg.Error as refused:
        return str(refused).splitlines()[0].split(": it must", 1)[1]


def test_columns_that_are_not_needed_may_be_renamed(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        connection.execute("ALTER TABLE catalog.prices RENAME COLUMN per TO of_units")
        write_price(connection)
        connection.execute("UPDATE catalog.prices SET unit_price = 3")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(1, 9), st.integers(13, 40), st.integers(0, 10**7))
def test_any_decimal_too_many_is_refused(priced: str, digit: int, decimals: int, whole: int) -> None:
    unit_price = f"{whole}.{'0' * (decimals - 1)}{digit}"
    with (
        psycopg.connect(priced) as connection,
        pytest.raises(psycopg.errors.CheckViolation, match="at most 12 decimals"),
    ):
        connection.execute("UPDATE catalog.prices SET unit_price = %s::numeric", [unit_price])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.decimals(0, 10**8 - 1, places=12), st.integers(0, 3))
def test_any_other_is_stored_as_it_was_written(priced: str, unit_price: Decimal, zeros: int) -> None:
    """Zeros that say nothing are no further decimals; and what is captured has the form that it always had."""
    with psycopg.connect(priced) as connection:
        connection.execute("UPDATE catalog.prices SET unit_price = %s::numeric", [f"{unit_price:f}{'0' * zeros}"])
        found = connection.execute("SELECT unit_price::text FROM catalog.prices").fetchone()
        assert found == (f"{unit_price:.12f}",)


@pytest.mark.parametrize("way", ["insert", "update"])
def test_a_price_for_an_undeclared_meter_is_refused_with_a_sentence(priced: str, way: str) -> None:
    refused = "a price of 'm' is for the meter 'request', which no application has ever declared"
    statement = {
        "insert": "INSERT INTO catalog.prices VALUES ('p', 'm', 'request', 'EUR', now(), 1)",
        "update": "UPDATE catalog.prices SET meter = 'request'",
    }[way]
    with psycopg.connect(priced) as connection, pytest.raises(psycopg.errors.CheckViolation, match=refused):
        connection.execute(statement.encode())


def write_price(connection: psycopg.Connection[Any], **other: Any) -> None:
    connection.execute(
        "INSERT INTO catalog.prices VALUES (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s, 2)"
        " ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE SET unit_price = excluded.unit_price",
        {**PRICE, **other},
    )


def priced_meters(connection: psycopg.Connection[Any]) -> set[str]:
    return {meter for (meter,) in connection.execute("SELECT meter FROM catalog.prices")}


def test_a_meter_that_was_declared_once_can_have_prices_for_ever(priced: str) -> None:
    """Its usage is billed yet: what waits, and what the audit mends."""
    with psycopg.connect(priced) as connection:
        declare(connection, [*DEFAULT, GPU])
        declare(connection, DEFAULT)
        write_price(connection, meter="gpu_seconds")
        assert priced_meters(connection) == {"requests", "gpu_seconds"}


def test_a_new_database_takes_prices_for_the_meters_of_every_release(database: str) -> None:
    """Before any application has started."""
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    with psycopg.connect(database) as connection:
        for meter in DEFAULT:
            write_price(connection, meter=meter.name)
        assert priced_meters(connection) == {meter.name for meter in DEFAULT}


def test_an_earlier_installation_upgrades_with_its_data_and_goes_on(database: str) -> None:
    """What nobody checked stays, may be stored again as it is, and may be deleted; more of its kind is refused."""
    with migrator(database) as config:
        command.downgrade(config, "0034")
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.prices", {**PRICE, "meter": "request", "unit_price": Decimal("0.0000000000375")})
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        stored = "SELECT unit_price::text FROM catalog.prices"
        assert connection.execute(stored).fetchall() == [("0.000000000038",)]
        connection.execute("UPDATE catalog.prices SET plan = plan")
        write_price(connection, meter="request")
        assert connection.execute(stored).fetchall() == [("2.000000000000",)]
        with pytest.raises(psycopg.errors.CheckViolation):
            write_price(connection, meter="request", model="n")
        connection.execute("DELETE FROM catalog.prices")
