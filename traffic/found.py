"""What a stack says became of a run: rows of the journal, of usage and of Postgres, in the shapes of the truth."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow.compute as pc
from deltalake import DeltaTable

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Record:
    """A row of the journal; `digest` is the SHA-256 of the bytes."""

    digest: str
    disposition: str
    reason: str | None
    source: str | None
    id: str | None


@dataclass(frozen=True)
class Usage:
    """A row of usage; `late_seconds` from the end of its window to when it was received."""

    account: str
    request_id: str
    outcome: str
    model: str | None
    late_seconds: float


@dataclass(frozen=True)
class Window:
    """What one account used in one minute, by model, meter and currency."""

    account: str
    model: str | None
    meter: str
    currency: str | None
    window_start: datetime
    quantity: int
    amount: Decimal
    unpriced_quantity: int


@dataclass(frozen=True)
class Straggler:
    """What arrived after grace, and what was decided."""

    account: str
    request_id: str
    meter: str
    window_start: datetime
    decision: str
    quantity: int
    amount: Decimal | None


def records(tables: str, truth: Mapping[str, Any]) -> Iterator[Record]:
    """The journal's rows of this run: of its time, and of its bytes or its sources."""
    known = {record["digest"] for record in truth["records"]}
    since = datetime.fromisoformat(truth["started_at"]) - timedelta(seconds=1)
    columns = ["value", "disposition", "reason", "source", "id"]
    where = (pc.field("topic") == "events") & (pc.field("received_at") >= pc.scalar(since))
    scanner = DeltaTable(f"{tables}/journal").to_pyarrow_dataset().scanner(columns=columns, filter=where)
    for batch in scanner.to_batches():
        for row in batch.to_pylist():
            digest = hashlib.sha256(row["value"] or b"").hexdigest()
            if digest in known or (row["source"] or "").endswith(truth["tag"]):
                yield Record(digest, row["disposition"], row["reason"], row["source"], row["id"])


def usage(tables: str, accounts: list[str]) -> Iterator[Usage]:
    """The outcomes of these accounts."""
    columns = ["account", "request_id", "outcome", "model", "event_time", "received_at"]
    where = pc.field("account").isin(accounts)
    scanner = DeltaTable(f"{tables}/usage").to_pyarrow_dataset().scanner(columns=columns, filter=where)
    for batch in scanner.to_batches():
        for row in batch.to_pylist():
            end = row["event_time"].replace(second=0, microsecond=0) + MINUTE
            late_seconds = (row["received_at"] - end).total_seconds()
            yield Usage(row["account"], row["request_id"], row["outcome"], row["model"], late_seconds)


def windows(database: psycopg.Connection[Any], accounts: list[str]) -> Iterator[Window]:
    """What was billed, over all price versions."""
    rows = database.execute(
        """
        SELECT account, model, meter, currency, window_start, sum(quantity), coalesce(sum(amount), 0),
               coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0)
        FROM usage_windows WHERE account = ANY (%s) GROUP BY account, model, meter, currency, window_start
        """,
        [accounts],
    )
    for account, model, meter, currency, start, quantity, amount, unpriced in rows:
        yield Window(account, model, meter, currency, start, int(quantity), amount, int(unpriced))


def stragglers(database: psycopg.Connection[Any], accounts: list[str]) -> Iterator[Straggler]:
    """What arrived after grace."""
    rows = database.execute(
        """
        SELECT account, request_id, meter, window_start, decision, quantity, amount
        FROM stragglers WHERE account = ANY (%s)
        """,
        [accounts],
    )
    for account, request_id, meter, start, decision, quantity, amount in rows:
        yield Straggler(account, request_id, meter, start, decision, int(quantity), amount)


def sessions(database: psycopg.Connection[Any], accounts: list[str]) -> dict[tuple[str, str], list[int]]:
    """The sorted numbers of events of each user's sessions."""
    rows = database.execute(
        """
        SELECT account, user_id, array_agg(events ORDER BY events)
        FROM sessions WHERE account = ANY (%s) AND retracted_at IS NULL GROUP BY account, user_id
        """,
        [accounts],
    )
    return {(account, user): list(events) for account, user, events in rows}


def window(total: Mapping[str, Any]) -> Window:
    """A total of the truth in the same shape."""
    return Window(
        total["account"],
        total["model"],
        total["meter"],
        total["currency"],
        datetime.fromisoformat(total["window_start"]),
        int(total["quantity"]),
        Decimal(total["amount"]),
        int(total["unpriced_quantity"]),
    )


def straggler(expected: Mapping[str, Any]) -> Straggler:
    """A straggler of the truth in the same shape."""
    return Straggler(
        expected["account"],
        expected["request_id"],
        expected["meter"],
        datetime.fromisoformat(expected["window_start"]),
        expected["decision"],
        int(expected["quantity"]),
        None if expected["amount"] is None else Decimal(expected["amount"]),
    )
