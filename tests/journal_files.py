"""A journal of rows made up by a test, as ingestion commits them: lsn, F, what an event is, and its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from jobs.runtime.delta.table import FRONTIER, LSN
from jobs.streams import JOURNAL, Table
from metering.vocabulary import Disposition, Family
from tests.ordered_events import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([field.with_nullable(True) for field in JOURNAL])


def value_of(lsn: int) -> bytes:
    """The event of this row."""
    return f'{{"id": "{lsn}"}}'.encode()


def account_of(lsn: int) -> str:
    """Whose it is."""
    return f"account-{lsn % 3}"


def instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def commit(
    tables: Path, rows: Sequence[Row], *, without_value: Sequence[int] = (), values: Mapping[int, bytes] | None = None
) -> DeltaTable:
    """Append a commit. Rows without a time are, in turns, heartbeats, dead letters and changes of the catalog.

    `values`: by lsn, events other than `value_of`.
    """
    held: dict[int, bytes | None] = {**dict.fromkeys(without_value), **(values or {})}
    table = pa.Table.from_pylist([_journal_row(row, held) for row in rows], SCHEMA)
    frontier = rows[-1].frontier_us
    transactions = [Transaction(LSN, rows[-1].lsn + 1), *([Transaction(FRONTIER, frontier)] if frontier else [])]
    path = str(tables / Table.JOURNAL)
    write_deltalake(
        path,
        table,
        partition_by=["log_date"],
        mode="append",
        commit_properties=CommitProperties(app_transactions=transactions),
    )
    return DeltaTable(path)


def _journal_row(row: Row, values: Mapping[int, bytes | None]) -> dict[str, object]:
    kind = "event" if row.event_us is not None else ("heartbeat", "dead letter", "catalog")[row.lsn % 3]
    is_rejected = kind == "dead letter"
    return {
        "lsn": row.lsn,
        "log_date": EPOCH.date(),
        "logged_at": EPOCH,
        "received_at": EPOCH,
        "topic": "catalog.prices" if kind == "catalog" else "events",
        "partition": row.lsn % 2,
        "offset": row.lsn,
        "frontier": instant(row.frontier_us),
        "disposition": Disposition.REJECTED.value if is_rejected else Disposition.ACCEPTED.value,
        "family": Family.HEARTBEAT.value if kind == "heartbeat" else Family.BOTH.value,
        "source": "gateway",
        "type": "ai.inference.usage.v1",
        "account": account_of(row.lsn) if row.lsn % 5 else None,
        "event_time": None if kind == "catalog" else instant(row.event_us or 0),
        "value": values.get(row.lsn, value_of(row.lsn)),
    }
