"""Mutants through everything that is shipped: ingestion's sink over a real broker, joins', sessionization's, billing's.

Only Kafka's source is not: its frames are made by hand, so that a record has the place and the stamp that it should.
Catalog changes are published, and read by ingestion's own reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from confluent_kafka import Message, Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.billing.pipeline import JOB as BILLING
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import build
from jobs.joins.pipeline import JOB as JOINS
from jobs.joins.sink import UsageSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.job import Context, PostgresJob, TableJob
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.kafka.headers import COLUMN
from jobs.runtime.kafka.marks import MARKS
from jobs.runtime.kafka.records import RECORDS
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.streams import GROWING, SCHEMAS, CatalogTopic, Table
from metering.meters import Meter
from tests.corpus.documents import encoded, request
from tests.corpus.mutate import ACCOUNTS, MODELS, PRICE, RECEIVED_AT, Mutant
from tests.corpus.mutations_of_bytes import MAX_BYTES
from tests.streaming.brokers import running_broker
from tests.streaming.journals import change, environment
from tests.streaming.topics import Topic, ingestion

DEVICE = "device/*"
SETTINGS: dict[str, Any] = {"max_record_bytes": MAX_BYTES, "clocks": {"device": [DEVICE]}}
BATCHES = 2
Place = tuple[str, int, int]
"""Topic (`events`: of events), partition and offset."""


@dataclass(frozen=True)
class Metered:
    """What all tables hold in the end, and where each record lay. Nothing waits any more."""

    sent: dict[Place, Mutant | None]
    """None: a valid record, sent beside them."""
    tables: dict[Table, pl.DataFrame]
    database: str


def metered(spark: SparkSession, database: str, folder: Path, mutants: Sequence[Mutant]) -> Metered:
    """Meter them on a broker and tables of their own; raises what any step raises."""
    tables = folder / "tables"
    with running_broker(folder / "kafka") as bootstrap:
        topic = Topic.make(bootstrap, partitions=2)
        sent = _sent_catalog(bootstrap)
        with ingestion(spark, bootstrap, database, tables, topic.name, **SETTINGS) as sink:
            placed = _placed(mutants)
            for number in range(BATCHES):
                sent |= _sent_changes(bootstrap, [m for m in mutants if m.topic is not None][number::BATCHES])
                some = list(placed.items())[number * len(placed) // BATCHES : (number + 1) * len(placed) // BATCHES]
                sink.process(build(_frame(spark, topic.name, some), IngestionConfig(**SETTINGS)))
            ends: dict[Place, Mutant | None] = {("events", p, _next_offset(placed, p)): None for p in range(2)}
            sink.process(build(_frame(spark, topic.name, list(ends.items())), IngestionConfig(**SETTINGS)))
    with _sink(spark, database, tables, JOINS) as context:
        _process(UsageSink(JOINS, context), spark, tables, JOINS)
    for job in (SESSIONIZATION, BILLING):
        with _sink(spark, database, tables, job) as context:
            _process(PostgresSink(job, context), spark, tables, job)
    return Metered(sent | placed | ends, {table: _rows(tables, table) for table in Table}, database)


def _placed(mutants: Sequence[Mutant]) -> dict[Place, Mutant | None]:
    placed: dict[Place, Mutant | None] = {}
    for one in (one for one in mutants if one.topic is None):
        placed["events", one.draft.partition, _next_offset(placed, one.draft.partition)] = one
    return placed


def _next_offset(placed: dict[Place, Mutant | None], partition: int) -> int:
    return sum(1 for _, other, _ in placed if other == partition)


def _frame(spark: SparkSession, topic: str, placed: Sequence[tuple[Place, Mutant | None]]) -> Any:
    rows = []
    for turn, ((_, partition, offset), one) in enumerate(placed):
        # Those that come last come a day later: then nothing waits for its partner any more.
        received_at = RECEIVED_AT + (timedelta(milliseconds=turn) if one else timedelta(days=1))
        stamp_us = one.draft.stamp_us if one else None
        end = request(type="source.heartbeat.v1", id=f"end-{partition}", time=f"{received_at:%Y-%m-%dT%H:%M:%SZ}")
        rows.append(
            {
                "key": one.draft.key if one else b"end",
                "value": one.draft.value if one else encoded(end),
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp": microseconds_of(received_at) if stamp_us is None else stamp_us,
                "timestampType": int(one is None or one.draft.is_broker_stamp),
                **dict.fromkeys((COLUMN, *MARKS)),
            }
        )
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in RECORDS]
    return spark.createDataFrame(pa.table(columns, RECORDS))


def _sent_catalog(bootstrap: str) -> dict[Place, Mutant | None]:
    """Valid accounts and prices, so that most events have a price."""
    accounts = [{"account": account, "plan": "pro", "currency": "EUR", "name": None} for account in ACCOUNTS]
    prices = [
        {**PRICE, "model": model, "meter": meter.value, "effective_from": "2024-01-01T00:00:00Z"}
        for model in MODELS
        for meter in Meter
    ]
    changes = [change(CatalogTopic.ACCOUNTS, 0, **account) for account in accounts]
    changes += [change(CatalogTopic.PRICES, 0, **price) for price in prices]
    return _sent(bootstrap, [(one["topic"], b"{}", one["value"], None) for one in changes])


def _sent_changes(bootstrap: str, changes: Sequence[Mutant]) -> dict[Place, Mutant | None]:
    records = [(one.topic.value, one.draft.key, one.draft.value, one) for one in changes if one.topic is not None]
    return _sent(bootstrap, records)


def _sent(
    bootstrap: str, records: Sequence[tuple[str, bytes | None, bytes | None, Mutant | None]]
) -> dict[Place, Mutant | None]:
    producer, placed = Producer({"bootstrap.servers": bootstrap}), dict[Place, Mutant | None]()
    for topic, key, value, one in records:

        def told(error: Any, message: Message, one: Mutant | None = one) -> None:
            assert error is None, error
            placed[str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)] = one

        # A topic that is compacted takes no record without a key.
        producer.produce(topic, value, key or b"", partition=0, on_delivery=told)
    assert producer.flush(60) == 0
    return placed


@contextmanager
def _sink(
    spark: SparkSession, database: str, tables: Path, job: TableJob[Any] | PostgresJob[Any]
) -> Iterator[Context[Any]]:
    ownership = Ownership.take(job.name, database, {})
    try:
        yield Context(job.config(), environment(database, tables), spark, ownership, MachineClock(), Denials())
    finally:
        ownership.close()


def _process(sink: Any, spark: SparkSession, tables: Path, job: TableJob[Any] | PostgresJob[Any]) -> None:
    rows = DeltaTable(f"{tables}/{job.reads}").to_pyarrow_table(columns=list(job.columns(job.config()))).sort_by("lsn")
    half = rows.num_rows // 2
    for part in (rows.slice(0, half), rows.slice(half)):
        if part.num_rows:
            sink.process(spark.createDataFrame(part))


def _rows(tables: Path, table: Table) -> pl.DataFrame:
    """All of its rows, with the columns that it has: some are added when a row first has a value (`GROWING`)."""
    stored = DeltaTable(f"{tables}/{table}").to_pyarrow_table()
    schema = pa.schema([field for field in SCHEMAS[table] if field.name in stored.column_names])
    assert {field.name for field in SCHEMAS[table]} - set(schema.names) <= set(GROWING.get(table, ()))
    return pl.DataFrame(stored.select(schema.names).cast(schema)).sort("lsn")
