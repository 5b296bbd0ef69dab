"""Journals made by hand for the jobs that read one: rows with the columns that matter, the rest null."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.ingestion import conventions
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of
from jobs.runtime.environment import Environment
from jobs.runtime.kafka.access import KafkaAccess
from jobs.streams import JOURNAL, CatalogTopic, Table
from metering.vocabulary import Disposition, EventType

WRITTEN = JOURNAL.append(conventions.FIELD)
"""What ingestion writes by the contracts that are shipped."""
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """An instant so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def environment(database: str, tables: Path) -> Environment:
    """Where a driver under test runs."""
    return Environment(
        kafka=KafkaAccess(bootstrap=""),
        postgres_url=database,
        tables=str(tables),
        checkpoints=tables / "checkpoints",
        jars=Path(),
    )


def event(kind: EventType, request_id: str, received_s: float, **fields: Any) -> dict[str, Any]:
    """An accepted event of account `a` and user `u`, received so many seconds after the start; it occurred then too."""
    return {
        "type": kind.value,
        "account": "a",
        "request_id": request_id,
        "received_at": at(received_s),
        "event_time": at(received_s),
        **({"user_id": "u", "model": "m"} if kind is not EventType.COMPLETION else {}),
        **({"input_tokens": 10, "output_tokens": 3, "status": "completed"} if kind is not EventType.REQUEST else {}),
        **fields,
    }


def heartbeat(received_s: float, partition: int = 0) -> dict[str, Any]:
    """A row that only moves the frontier."""
    received_at = at(received_s)
    return {
        "type": EventType.HEARTBEAT.value,
        "partition": partition,
        "received_at": received_at,
        "event_time": received_at,
    }


def change(topic: CatalogTopic, received_s: float, **after: Any) -> dict[str, Any]:
    """A catalog change as the journal holds it."""
    committed_ms = microseconds_of(at(received_s)) // 1000
    value = {"before": None, "after": after, "op": "c", "ts_ms": committed_ms, "source": {"ts_ms": committed_ms}}
    return {"topic": topic.value, "received_at": at(received_s), "value": json.dumps(value).encode()}


class Journal:
    """A journal that grows by commits, as ingestion's does: F is the smallest of the partitions' latest receipts."""

    def __init__(self, tables: Path | str, epoch: int = 1, declared: Iterable[pa.Field] = ()) -> None:
        self.tables = str(tables)
        fields = [conventions.FIELD, *declared]
        self._schema = pa.schema([*JOURNAL, *fields])
        self._writer = DeltaWriter(self.tables, Table.JOURNAL, "ingestion", epoch, declared=fields)
        self._latest: dict[int, datetime] = {}

    @property
    def next_lsn(self) -> int:
        """The lsn of the next row."""
        return self._writer.next_lsn

    @property
    def frontier(self) -> datetime | None:
        """F of all that was committed."""
        return min(self._latest.values(), default=None)

    def commit(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows in one commit."""
        rows, first = list(rows), self.next_lsn
        for row in rows:
            if "topic" not in row:
                partition, received_at = row.get("partition", 0), row["received_at"]
                self._latest[partition] = max(received_at, self._latest.get(partition, received_at))
        frontier = self.frontier
        complete = [
            {
                "lsn": first + number,
                "log_date": START.date(),
                "logged_at": START,
                "topic": "events",
                "partition": 0,
                "offset": first + number,
                "disposition": Disposition.ACCEPTED.value,
                "frontier": frontier,
                **row,
            }
            for number, row in enumerate(rows)
        ]
        moved = {LSN: first + len(rows)}
        if frontier is not None:
            moved[FRONTIER] = microseconds_of(frontier)
        self._writer.commit(pa.Table.from_pylist(complete, schema=self._schema), moved)

    def rows(self, first: int = 1) -> pl.DataFrame:
        """Rows from `first` on, as the driver that committed them has them."""
        table = DeltaTable(f"{self.tables}/{Table.JOURNAL}").to_pyarrow_table(filters=[("lsn", ">=", first)])
        return pl.DataFrame(table)

    def read(self, spark: SparkSession, columns: Iterable[str], first: int = 1, end: int | None = None) -> DataFrame:
        """Rows [first, end) as a batch frame."""
        return batch_of(spark, self.tables, columns, first, end or self.next_lsn)


def batch_of(spark: SparkSession, tables: Path | str, columns: Iterable[str], first: int, end: int) -> DataFrame:
    """The journal's rows [first, end) as a batch frame, out of this process.

    Spark's own look at a Delta log takes seconds, and one at Parquet files a job; the tests of sinks look often.
    """
    rows = DeltaTable(f"{tables}/{Table.JOURNAL}").to_pyarrow_table(
        columns=list(columns), filters=[("lsn", ">=", first), ("lsn", "<", end)]
    )
    return spark.createDataFrame(rows)
