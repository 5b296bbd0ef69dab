"""What `weir catalog delete` writes, and what the database refuses; the log of changes is in `test_capture`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from catalog.deletion import delete_plan, delete_row
from catalog.file import parse_catalog
from catalog.store import store
from deployment.errors import CannotRun
from jobs.streams import CatalogTopic

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = {"plan": "team", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": JANUARY}
CATALOG = """
plans: [{plan: team, name: Team}]
accounts: [{account: a, name: A, plan: team, currency: EUR}, {account: b, name: B, plan: team, currency: EUR}]
prices:
  - {plan: team, model: m, meter: requests, unit_price: "0.1", currency: EUR, effective_from: 2026-01-01T00:00:00Z}
"""


@pytest.fixture
def stored_catalog(database: str) -> str:
    """The address of a database with a catalog."""
    store(database, parse_catalog(CATALOG))
    return database


def rows(database: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(f"SELECT * FROM catalog.{table}".encode()).fetchall()


def test_a_deleted_price_ends_at_its_deletion(stored_catalog: str) -> None:
    before = datetime.now(UTC)
    gone = delete_row(stored_catalog, CatalogTopic.PRICES, PRICE, None, "ann")
    assert before - timedelta(seconds=1) < gone.ends_at < datetime.now(UTC) + timedelta(seconds=1)
    assert (gone.change.op, gone.begins_at, gone.is_to_come) == ("d", JANUARY, False)
    assert gone.change.after["changed_by"] == "ann"
    assert rows(stored_catalog, "prices") == []


def test_a_deleted_account_does_not_restart_just_before_its_deletion(stored_catalog: str) -> None:
    """Its row is told once more, with who deletes it: it must say what it said, or that would be another version."""
    with psycopg.connect(stored_catalog) as connection:
        since = connection.execute("SELECT changed_at FROM catalog.accounts WHERE account = 'a'").fetchone()
    gone = delete_row(stored_catalog, CatalogTopic.ACCOUNTS, {"account": "a"}, JANUARY, "ann")
    assert since is not None
    assert (gone.begins_at, gone.ends_at) == (since[0], JANUARY)
    assert len(rows(stored_catalog, "accounts")) == 1


def test_an_unknown_price_is_reported_with_the_existing_ones(stored_catalog: str) -> None:
    with pytest.raises(CannotRun, match=r"currency those that there are begin at 2026-01-01T00:00:00Z\."):
        delete_row(stored_catalog, CatalogTopic.PRICES, {**PRICE, "effective_from": JANUARY + timedelta(1)}, None, "a")
    with pytest.raises(CannotRun, match=r"there is none at all\."):
        delete_row(stored_catalog, CatalogTopic.PRICES, {**PRICE, "model": "n"}, None, "ann")
    with pytest.raises(CannotRun, match=r"no account 'c'"):
        delete_row(stored_catalog, CatalogTopic.ACCOUNTS, {"account": "c"}, None, "ann")


def test_a_plan_is_deleted_when_nothing_uses_it_and_otherwise_its_users_are_listed(stored_catalog: str) -> None:
    with pytest.raises(CannotRun, match=r"2 accounts have it \(a, b\) and 1 prices are of it\."):
        delete_plan(stored_catalog, "team", "ada")
    for name in "ab":
        delete_row(stored_catalog, CatalogTopic.ACCOUNTS, {"account": name}, None, "ann")
    with pytest.raises(CannotRun, match=r"still used: 1 prices are of it\."):
        delete_plan(stored_catalog, "team", "ada")
    delete_row(stored_catalog, CatalogTopic.PRICES, PRICE, None, "ann")
    delete_plan(stored_catalog, "team", "ada")
    assert rows(stored_catalog, "plans") == []
    with pytest.raises(CannotRun, match=r"has no plan 'team'"):
        delete_plan(stored_catalog, "team", "ada")


@pytest.mark.parametrize("table", ["prices", "accounts"])
def test_a_row_that_has_a_deletion_time_must_be_deleted_in_its_transaction(stored_catalog: str, table: str) -> None:
    """It would say that moment of a deletion of next year."""
    said = f"UPDATE catalog.{table} SET deleted_at = now()".encode()
    with (
        pytest.raises(psycopg.errors.CheckViolation, match="delete it in the same transaction"),
        psycopg.connect(stored_catalog) as connection,
    ):
        connection.execute(said)
    with psycopg.connect(stored_catalog) as connection:
        connection.execute(said)
        connection.execute(f"UPDATE catalog.{table} SET deleted_at = NULL".encode())
    with psycopg.connect(stored_catalog) as connection:
        connection.execute(said)
        connection.execute(f"DELETE FROM catalog.{table}".encode())
    assert rows(stored_catalog, table) == []


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "9000-01-01 UTC"])
def test_a_deletion_time_out_of_range_is_refused(stored_catalog: str, moment: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation), psycopg.connect(stored_catalog) as connection:
        connection.execute("UPDATE catalog.prices SET deleted_at = %s", [moment])


def test_the_beginning_of_a_price_that_has_begun_is_not_moved(stored_catalog: str) -> None:
    """To the log of changes it is a deletion: usage of now would have no price, and the row says that it has."""
    with pytest.raises(psycopg.errors.CheckViolation, match="has begun"), psycopg.connect(stored_catalog) as connection:
        connection.execute("UPDATE catalog.prices SET effective_from = '2025-01-01 UTC'")
    with psycopg.connect(stored_catalog) as connection:
        connection.execute("UPDATE catalog.prices SET effective_from = effective_from, unit_price = 7")
        to_come = "INSERT INTO catalog.prices VALUES ('team', 'm', 'requests', 'EUR', '8000-01-01 UTC', 1)"
        connection.execute(to_come)
        connection.execute("UPDATE catalog.prices SET effective_from = '7000-01-01 UTC' WHERE unit_price = 1")
    assert len(rows(stored_catalog, "prices")) == 2
