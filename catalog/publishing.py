"""Catalog changes on their way to joins: the records that Debezium would publish, and which of them joins lacks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from itertools import groupby
from typing import Any

from catalog.change import Change, compact_json, envelope
from catalog.outbox import pending, told
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from deployment.sender import Sender
from jobs.runtime.delta.table import open_table
from jobs.streams import CatalogTopic, Table

Offsets = dict[tuple[str, int], int]
"""The offset after the last of some records, per topic and partition."""


def publish_pending(bootstrap: str, postgres_url: str) -> Offsets:
    """Send what the outbox holds, in order; gives the offsets after it.

    A topic's changes go out when the broker has those of the topic before: nobody may see an account before its prices.
    Raises CannotRun when the broker refuses one: it stays in the outbox, with all that follow.
    """
    offsets: Offsets = {}
    for _, group in groupby(pending(postgres_url), key=lambda entry: entry[1].topic):
        entries = list(group)
        offsets |= publish(bootstrap, [change for _, change in entries])
        told(postgres_url, [number for number, _ in entries])
    return offsets


def publish(bootstrap: str, changes: Sequence[Change]) -> Offsets:
    """Send each change to its topic; gives the offset after the last one, per topic and partition.

    Raises CannotRun when the broker refuses one.
    """
    sender = Sender(kafka_client(bootstrap))
    for number, change in enumerate(changes):
        key, value = compact_json(change.key), compact_json(envelope(change))
        sender.send(change.topic.value, key.encode(), value.encode(), number=number)
    sender.flush()
    if sender.refused:
        refusal = sender.refused[0]
        raise CannotRun(
            f"The broker refused {len(sender.refused)} changes of the catalog ({changes[refusal.number].topic} "
            f"{changes[refusal.number].key}: {refusal.reason}). The database keeps them: run `weir catalog publish`."
        )
    return sender.next_offsets


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
    """Whether an account's version is what the change would make of it (`without_repeats` in joins).

    Without `effective_from` the change was told at an instant that its row does not keep: then whatever has begun.
    """
    since, held_since = change.after["effective_from"], version["effective_from"]
    is_since = held_since <= change.committed_at if since is None else held_since == datetime.fromisoformat(since)
    return bool(is_since) and _account_values(version) == _account_values(change.after)


def _account_values(row: Any) -> tuple[str, ...]:
    return row["name"], row["plan"], row["currency"], row["timezone"]
