"""What joins has of the catalog: whether it prices with what the database says, however it was told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from catalog.change import Change
from catalog.store import stored
from jobs.runtime.delta.table import open_table
from jobs.streams import CatalogTopic, Table


class Missing:
    """Which rows joins does not have yet as the database has them, asked again and again until there are none."""

    def __init__(self, tables: str, postgres_url: str, changes: Sequence[Change]) -> None:
        self._tables = tables
        self._postgres_url = postgres_url
        self._changes = changes

    def __call__(self) -> int:
        """How many. Somebody else may have changed or deleted a row meanwhile: what it is now is asked for.

        Raises `psycopg.OperationalError` while the database does not answer.
        """
        if self._changes:
            known = Known(self._tables)
            self._changes = [row for row in stored(self._postgres_url, self._changes) if not known(row)]
        return len(self._changes)


class Known:
    """What joins has of the catalog, read when it is first asked."""

    def __init__(self, tables: str) -> None:
        self._tables = tables

    def __call__(self, change: Change) -> bool:
        """Whether the newest version of a row says what the change says. Plans have no versions: they are known."""
        match change.topic:
            case CatalogTopic.PRICES:
                return self._prices.get(_price_key(change.after)) == Decimal(change.after["unit_price"])
            case CatalogTopic.ACCOUNTS:
                held = self._accounts.get(change.after["account"])
                return held is not None and _says_the_same(held, change)
        return True

    @cached_property
    def _prices(self) -> dict[Any, Decimal | None]:
        """Unit price by key, None where the price was withdrawn."""
        rows = _versions(self._tables, Table.PRICES)
        return {_price_key(row): None if row["deleted"] else row["unit_price"] for row in rows}

    @cached_property
    def _accounts(self) -> dict[str, dict[str, Any] | None]:
        """The newest version by account, None where the account was deleted."""
        rows = _versions(self._tables, Table.ACCOUNTS)
        return {row["account"]: None if row["deleted"] else row for row in rows}


def _versions(tables: str, table: Table) -> list[dict[str, Any]]:
    found = open_table(tables, table)
    if found is None:
        return []
    rows: list[dict[str, Any]] = found.to_pyarrow_table().sort_by("lsn").to_pylist()
    return rows


def _price_key(row: Any) -> tuple[Any, ...]:
    since = row["effective_from"]
    instant = since if isinstance(since, datetime) else datetime.fromisoformat(since)
    return row["plan"], row["model"], row["meter"], row["currency"], instant


def _says_the_same(version: dict[str, Any], change: Change) -> bool:
    """Whether an account's version is what the change would make of it (`without_repeats` in joins)."""
    since = datetime.fromisoformat(change.after["effective_from"] or change.after["changed_at"])
    return bool(version["effective_from"] == since) and _account_values(version) == _account_values(change.after)


def _account_values(row: Any) -> tuple[str, ...]:
    return row["name"], row["plan"], row["currency"], row["timezone"]
