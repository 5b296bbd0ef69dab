"""The catalog in joins: whether it prices with what the database says, however the change was published."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl

from catalog.change import Change, Row
from catalog.store import stored
from jobs.joins.catalog import TABLE_OF
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.table import open_table
from jobs.streams import SCHEMAS, CatalogTopic, Table

_INSTANT = pl.Datetime("us", "UTC")
_KEYS: dict[Table, dict[str, pl.DataType | type[pl.DataType]]] = {
    Table.ACCOUNTS: {"account": pl.String},
    Table.PRICES: {
        **dict.fromkeys(("plan", "model", "meter", "currency"), pl.String),
        "effective_from": _INSTANT,
    },
}


class NotJoined:
    """The rows that joins does not have yet as the database has them, checked repeatedly until there are none."""

    def __init__(self, tables: str, postgres_url: str, changes: Sequence[Change]) -> None:
        self._tables = tables
        self._postgres_url = postgres_url
        self._changes = changes

    def __call__(self) -> int:
        """How many. If another process changes or deletes a row meanwhile, its current state counts.

        Raises `psycopg.OperationalError` while the database does not answer.
        """
        if self._changes:
            self._changes = not_joined(self._tables, stored(self._postgres_url, self._changes))
        return len(self._changes)


class PendingDeletions:
    """The deleted rows that joins still has, checked repeatedly until there are none."""

    def __init__(self, tables: str, postgres_url: str, deleted: Sequence[Change]) -> None:
        self._tables = tables
        self._postgres_url = postgres_url
        self._deleted = deleted

    def __call__(self) -> int:
        """How many. A row that was created again meanwhile does not count.

        Raises `psycopg.OperationalError` while the database does not answer.
        """
        restored = [(row.topic, row.key) for row in stored(self._postgres_url, self._deleted)]
        self._deleted = [row for row in self._deleted if (row.topic, row.key) not in restored]
        return sum(len(_newest(self._tables, TABLE_OF[row.topic], [row.key])) for row in self._deleted)


def not_joined(tables: str, rows: Sequence[Change]) -> list[Change]:
    """The rows of the catalog whose newest version differs. Plans have no versions."""
    accounts = [row for row in rows if row.topic is CatalogTopic.ACCOUNTS]
    prices = [row for row in rows if row.topic is CatalogTopic.PRICES]
    known_accounts = _newest(tables, Table.ACCOUNTS, [row.key for row in accounts])
    known_prices = _newest(tables, Table.PRICES, [row.key for row in prices])
    return [
        *(row for row in prices if not _is_price(known_prices.get(_key(Table.PRICES, row.key)), row.after)),
        *(row for row in accounts if not _is_account(known_accounts.get(_key(Table.ACCOUNTS, row.key)), row.after)),
    ]


def versions(tables: str, table: Table) -> pl.DataFrame | None:
    """All versions that joins has of accounts or prices; None before there is a table."""
    found = open_table(tables, table)
    # Not with Arrow's own threads: a process that ends soon after has ended in `terminate` where they still wind down.
    if found is None:
        return None
    # Of an older release it lacks columns until joins begins.
    rows = found.to_pyarrow_dataset().to_table(use_threads=False)
    return pl.DataFrame(with_stored_columns(rows, SCHEMAS[table]))


def _newest(tables: str, table: Table, keys: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The newest versions of these keys, unless they were deleted."""
    joined = versions(tables, table) if keys else None
    if joined is None:
        return {}
    wanted = pl.DataFrame([_key(table, key) for key in keys], schema=_KEYS[table], orient="row")
    newest = {
        _key(table, row): row for row in joined.join(wanted, on=list(_KEYS[table]), how="semi").sort("lsn").to_dicts()
    }
    return {key: row for key, row in newest.items() if not row["deleted"]}


def _key(table: Table, row: Row) -> tuple[Any, ...]:
    return tuple(_instant(row[name]) if kind == _INSTANT else row[name] for name, kind in _KEYS[table].items())


def _instant(value: str | datetime) -> datetime:
    return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).astimezone(UTC)


def _is_price(version: Row | None, row: Row) -> bool:
    unit_price = None if row["unit_price"] is None else Decimal(row["unit_price"])
    return version is not None and (version["unit_price"], version["terms"]) == (unit_price, row.get("terms"))


def _is_account(version: Row | None, row: Row) -> bool:
    """Whether an account's version is what its row makes (`parse_change`), so that `without_repeats` would drop it."""
    since = _instant(row["effective_from"] or row["changed_at"])
    return version is not None and _values(version) == _values(row) and _instant(version["effective_from"]) == since


def _values(row: Row) -> tuple[str | None, ...]:
    tags = row.get("tags")
    return row["name"], row["plan"], row["currency"], row["timezone"], None if tags == "{}" else tags, row.get("parent")
