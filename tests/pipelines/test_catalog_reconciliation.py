"""What joins has and the database has no more is deleted once more, but for what is on its way; a real database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catalog.deletion import delete_row
from catalog.file import parse_catalog
from catalog.reconciliation import delete_missing, missing_deletions, outdated, publish_differences
from catalog.store import store
from jobs.streams import SCHEMAS, CatalogTopic, Table

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = {"plan": "team", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": JANUARY}
ACCOUNT = {"account": "a", "name": "A", "plan": "team", "currency": "EUR", "effective_from": JANUARY}
CATALOG = """
plans: [{plan: team, name: Team}]
accounts: [{account: a, name: A, plan: team, currency: EUR, effective_from: 2026-01-01T00:00:00Z}]
prices:
  - {plan: team, model: m, meter: requests, unit_price: "0.1", currency: EUR, effective_from: 2026-01-01T00:00:00Z}
"""


class Joined:
    """A catalog in the database, and in the tables of joins as it was told."""

    def __init__(self, url: str, tables: str) -> None:
        self.url, self.tables = url, tables
        store(url, parse_catalog(CATALOG))
        self.told(Table.PRICES, 1, **PRICE, unit_price=Decimal("0.1"), deleted=False)
        self.told(Table.ACCOUNTS, 2, **ACCOUNT, deleted=False)

    def told(self, table: Table, lsn: int, **row: Any) -> None:
        rows = pa.Table.from_pylist([{"lsn": lsn, **row}], schema=SCHEMAS[table])
        write_deltalake(f"{self.tables}/{table}", rows, mode="append")

    def ends(self) -> list[tuple[Any, ...]]:
        """Of prices that were deleted."""
        with psycopg.connect(self.url) as connection:
            return connection.execute("SELECT ended_at FROM catalog.ended_prices").fetchall()


@pytest.fixture
def joined(database: str, tmp_path: Path) -> Joined:
    return Joined(database, str(tmp_path))


@pytest.mark.parametrize("ends", [JANUARY + timedelta(days=30), datetime(2999, 1, 1, tzinfo=UTC)])
def test_a_deletion_during_the_wait_for_joins_keeps_its_time(joined: Joined, ends: datetime) -> None:
    """It is on its way to joins: deleted once more it would end now, and usage be billed by it until then."""
    before = missing_deletions(joined.tables, joined.url)
    delete_row(joined.url, CatalogTopic.ACCOUNTS, {"account": "a"}, ends, "ann")
    delete_row(joined.url, CatalogTopic.PRICES, PRICE, ends, "ann")
    assert delete_missing(joined.tables, joined.url, before) == 0
    assert joined.ends() == [(ends,)]


def test_a_deletion_that_was_never_published_is_published_and_ends_now(joined: Joined) -> None:
    delete_row(joined.url, CatalogTopic.ACCOUNTS, {"account": "a"}, None, "ann")
    delete_row(joined.url, CatalogTopic.PRICES, PRICE, JANUARY + timedelta(days=30), "ann")
    before = missing_deletions(joined.tables, joined.url)
    asked_at = datetime.now(UTC)
    assert delete_missing(joined.tables, joined.url, before) == 2
    [(ends_at,)] = joined.ends()
    assert ends_at > asked_at - timedelta(seconds=1)


def test_deletions_of_an_older_release_are_published_again_before_its_table_grows(joined: Joined) -> None:
    """joins gives the table its columns when it begins, and may be waited for."""
    older = pa.schema([field for field in SCHEMAS[Table.ACCOUNTS] if field.name not in ("tags", "parent")])
    rows = pa.Table.from_pylist([{"lsn": 2, **ACCOUNT, "deleted": False}], schema=older)
    write_deltalake(f"{joined.tables}/{Table.ACCOUNTS}", rows, mode="overwrite", schema_mode="overwrite")
    delete_row(joined.url, CatalogTopic.ACCOUNTS, {"account": "a"}, None, "ann")
    assert delete_missing(joined.tables, joined.url, missing_deletions(joined.tables, joined.url)) == 1


def test_a_row_that_joins_received_meanwhile_is_not_deleted(joined: Joined) -> None:
    ends = JANUARY + timedelta(days=30)
    delete_row(joined.url, CatalogTopic.ACCOUNTS, {"account": "a"}, ends, "ann")
    delete_row(joined.url, CatalogTopic.PRICES, PRICE, ends, "ann")
    before = missing_deletions(joined.tables, joined.url)
    joined.told(Table.PRICES, 3, **PRICE, ends_at=ends, deleted=True)
    joined.told(Table.ACCOUNTS, 4, account="a", effective_from=ends, deleted=True)
    assert delete_missing(joined.tables, joined.url, before) == 0
    # Put there again, which was told, and deleted again, which is on its way.
    joined.told(Table.PRICES, 5, **PRICE, unit_price=Decimal("0.1"), deleted=False)
    assert delete_missing(joined.tables, joined.url, before) == 0
    assert joined.ends() == [(ends,)]


def test_what_is_there_again_is_not_deleted(joined: Joined) -> None:
    delete_row(joined.url, CatalogTopic.PRICES, PRICE, None, "ann")
    before = missing_deletions(joined.tables, joined.url)
    store(joined.url, parse_catalog(CATALOG))
    assert delete_missing(joined.tables, joined.url, before) == 0


def test_an_account_of_a_formerly_known_zone_can_be_deleted_once_more(joined: Joined) -> None:
    """An earlier release took it. It would hold up all others, for ever."""
    joined.told(Table.ACCOUNTS, 3, **{**ACCOUNT, "account": "old"}, timezone="posix/Europe/Berlin", deleted=False)
    assert delete_missing(joined.tables, joined.url, missing_deletions(joined.tables, joined.url)) == 1
    with psycopg.connect(joined.url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("UPDATE catalog.accounts SET timezone = 'posix/Europe/Berlin'")


def test_changes_rejected_under_a_renamed_column_are_counted_until_published(joined: Joined) -> None:
    """Called as before, nothing is rejected any more, and nothing is told either."""
    joined.told(Table.ACCOUNTS, 3, **ACCOUNT, timezone="UTC", deleted=False)
    until = datetime.now(UTC) + timedelta(minutes=1)
    assert outdated(joined.tables, joined.url, until) == 0
    with psycopg.connect(joined.url) as connection:
        connection.execute("ALTER TABLE catalog.prices RENAME unit_price TO price")
        connection.execute("ALTER TABLE catalog.accounts RENAME effective_from TO since")
        connection.execute("UPDATE catalog.prices SET price = 0.2")
        connection.execute("UPDATE catalog.accounts SET name = 'B'")
        connection.execute("ALTER TABLE catalog.prices RENAME price TO unit_price")
        connection.execute("ALTER TABLE catalog.accounts RENAME since TO effective_from")
    assert outdated(joined.tables, joined.url, until) == 2
    assert outdated(joined.tables, joined.url, until - timedelta(minutes=2)) == 0, "that may be on its way"
    assert publish_differences(joined.tables, joined.url) == 2
    assert outdated(joined.tables, joined.url, until) == 2, "it is told, and joins does not have it yet"
    with psycopg.connect(joined.url) as connection:
        name = connection.execute("SELECT name FROM catalog.account_history WHERE holds_until = 'infinity'").fetchone()
    assert name == ("B",)
    joined.told(Table.ACCOUNTS, 4, **{**ACCOUNT, "name": "B"}, timezone="UTC", deleted=False)
    joined.told(Table.PRICES, 5, **PRICE, unit_price=Decimal("0.2"), deleted=False)
    assert outdated(joined.tables, joined.url, until) == 0
