"""Catalog changes on their way to joins: the records that Debezium would publish, and which of them joins lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from deltalake import DeltaTable

from jobs.streams import CatalogTopic, Table
from local.catalog_store import Change
from local.errors import CannotRun
from local.kafka_client import kafka_client
from local.sender import Sender

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def publish(bootstrap: str, changes: Sequence[Change]) -> dict[tuple[str, int], int]:
    """Send each change to its topic; gives the offset after the last one, per topic and partition.

    Raises CannotRun when the broker refuses one: applying the file again sends what joins does not have.
    """
    sender = Sender(kafka_client(bootstrap))
    for number, change in enumerate(changes):
        sender.send(change.topic.value, _json(change.key), _json(envelope(change)), number=number)
    sender.flush()
    if sender.refused:
        refusal = sender.refused[0]
        raise CannotRun(
            f"The catalog is stored, but the broker refused {len(sender.refused)} of its changes "
            f"({changes[refusal.number].topic} {changes[refusal.number].key}: {refusal.reason}); apply the file again."
        )
    return sender.next_offsets


def envelope(change: Change) -> dict[str, Any]:
    """The value of a change event: Debezium's envelope without schemas, under the default replica identity."""
    at_ms = (change.committed_at - EPOCH) // timedelta(milliseconds=1)
    schema, table = change.topic.value.split(".")
    source = {"connector": "postgresql", "name": "weir", "ts_ms": at_ms, "schema": schema, "table": table}
    return {"before": None, "after": dict(change.after), "source": source, "op": change.op, "ts_ms": at_ms}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def not_yet_known(tables: str, changes: Iterable[Change]) -> list[Change]:
    """What must be published: what changed now, and what is so already but joins does not have.

    So a crash between the database's commit and the publishing is healed by applying the file again. A row that joins
    has is not sent: an account without `effective_from` would get a version that begins now.
    """
    prices, accounts = _newest_prices(tables), _newest_accounts(tables)
    return [change for change in changes if change.op != "r" or not _is_known(change, prices, accounts)]


def _is_known(change: Change, prices: dict[Any, Any], accounts: dict[Any, Any]) -> bool:
    after = change.after
    match change.topic:
        case CatalogTopic.PRICES:
            return bool(prices.get(_price_key(after)) == Decimal(after["unit_price"]))
        case CatalogTopic.ACCOUNTS:
            return bool(accounts.get(after["account"]) == _account_values(after))
    # Plans have no versions of their own; sending one again changes nothing.
    return False


def _newest_prices(tables: str) -> dict[Any, Decimal | None]:
    """Unit price by key, None where the price was withdrawn."""
    rows = _versions(tables, Table.PRICES)
    return {_price_key(row): None if row["deleted"] else row["unit_price"] for row in rows}


def _newest_accounts(tables: str) -> dict[str, tuple[str, ...] | None]:
    rows = _versions(tables, Table.ACCOUNTS)
    return {row["account"]: None if row["deleted"] else _account_values(row) for row in rows}


def _versions(tables: str, table: Table) -> list[dict[str, Any]]:
    uri = f"{tables}/{table}"
    if not DeltaTable.is_deltatable(uri):
        return []
    rows: list[dict[str, Any]] = DeltaTable(uri).to_pyarrow_table().sort_by("lsn").to_pylist()
    return rows


def _price_key(row: Any) -> tuple[Any, ...]:
    since = row["effective_from"]
    instant = since if isinstance(since, datetime) else datetime.fromisoformat(since)
    return row["plan"], row["model"], row["meter"], row["currency"], instant


def _account_values(row: Any) -> tuple[str, ...]:
    return row["name"], row["plan"], row["currency"], row["timezone"]
