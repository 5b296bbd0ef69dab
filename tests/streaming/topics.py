"""A topic of events of a test's own, on a real broker, and ingestion's sink on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # its stub leaves them out
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB, build
from jobs.ingestion.sink import JournalSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.environment import Environment
from jobs.runtime.errors import NotYet
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.kafka.marks import WITH_HEADERS, marked
from jobs.runtime.kafka.topic import LATEST, list_partitions, offsets
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import Table
from metering.vocabulary import EventType
from tests.waiting import wait_until

IS_EVENT = pl.col("topic").str.starts_with("events-")


@dataclass
class Topic:
    """A topic of events. Records are appended and acknowledged one by one, so that their order is known.

    All of its events occurred at one instant, so that two of one id are the same event, whatever the second they are
    made in.
    """

    bootstrap: str
    name: str
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.producer = Producer({"bootstrap.servers": self.bootstrap})

    @classmethod
    def make(cls, bootstrap: str, partitions: int = 1, **settings: str) -> Topic:
        """A new one, with LogAppendTime unless the settings say otherwise (`.` as `_`)."""
        topic = cls(bootstrap, f"events-{uuid4().hex}")
        topic.create(partitions, **settings)
        return topic

    def create(self, partitions: int = 1, **settings: str) -> None:
        """Make it on the broker, and wait until it is known there."""
        config = {"message.timestamp.type": "LogAppendTime", **{k.replace("_", "."): v for k, v in settings.items()}}
        self.admin.create_topics([NewTopic(self.name, partitions, 1, config=config)])[self.name].result()
        self.wait_for(partitions)

    def wait_for(self, partitions: int) -> None:
        """Until the broker lists so many partitions, each with a leader."""

        def are_known() -> bool:
            try:
                described = list_partitions(self.admin, [self.name])[0]
                # A leader that is named may not lead yet.
                listed = offsets(self.admin, described, LATEST)
            except (KafkaException, NotYet):
                return False
            found = self.producer.list_topics(self.name, timeout=10).topics[self.name].partitions
            return len(listed) == len(found) == partitions and all(p.leader >= 0 for p in found.values())

        wait_until(are_known, f"{self.name} being known with {partitions} partitions")

    def append(self, *ids: str, partition: int = 0, timestamp: int = 0, age: timedelta = timedelta()) -> None:
        """One event per id."""
        for name in ids:
            self.producer.produce(self.name, self.event(name, age), b"a", partition=partition, timestamp=timestamp)
            assert self.producer.flush(30) == 0

    def event(self, name: str, age: timedelta = timedelta()) -> bytes:
        """An event that needs nothing but its envelope, and occurred so long before the others."""
        envelope = {
            "specversion": "1.0",
            "type": EventType.HEARTBEAT.value,
            "source": "s",
            "id": name,
            "subject": "a",
            "time": (self.occurred_at - age).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return json.dumps(envelope).encode()

    def transaction(self, *ids: str, commit: bool) -> None:
        """Events of one transaction, which leaves a marker; aborted, it leaves the records unread as well."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": uuid4().hex})
        producer.init_transactions()
        producer.begin_transaction()
        for name in ids:
            producer.produce(self.name, self.event(name), b"a", partition=0)
        producer.flush(30)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        # The broker writes the marker a moment later; what is read as committed ends before the transaction until then.
        wait_until(lambda: self._end(IsolationLevel.READ_COMMITTED) >= self._end(), "the transaction's marker")

    def _end(self, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
        place = TopicPartition(self.name, 0)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        found: int = self.admin.list_offsets({place: latest}, isolation_level=isolation)[place].result().offset
        return found


@contextmanager
def ingestion(
    spark: SparkSession, bootstrap: str, database: str, tables: Path, topic: str, **config: Any
) -> Iterator[JournalSink]:
    """Ingestion's sink on a topic. It has beaten once, and does not again in a test."""
    where = Environment(
        kafka=KafkaAccess(bootstrap=bootstrap),
        postgres_url=database,
        tables=str(tables),
        checkpoints=tables / "checkpoints",
        jars=Path(),
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    events = list_partitions(admin, [topic])[0]
    ends = offsets(admin, events, LATEST)
    settings = IngestionConfig(topic=topic, heartbeat_interval_seconds=60, **config)
    ownership = Ownership.take(JOB.name, database, settings.model_dump(mode="json"))
    with ExitStack() as held:
        held.callback(ownership.close)
        sink = JournalSink(JOB, Context(settings, where, spark, ownership, MachineClock(), Denials()))
        held.callback(sink.close)
        wait_until(
            lambda: all(end > ends[partition] for partition, end in offsets(admin, events, LATEST).items()),
            "a first heartbeat in every partition",
        )
        yield sink


def let_commands_reach(monkeypatch: pytest.MonkeyPatch, bootstrap: str, database: str, tables: Path) -> None:
    """Let `weir` find these servers and tables, as it does in a pod."""
    for name, value in (("KAFKA_BOOTSTRAP", bootstrap), ("POSTGRES_URL", database), ("TABLES", str(tables))):
        monkeypatch.setenv(f"WEIR_{name}", value)


def batch(
    spark: SparkSession, topic: Topic, without: str | None = None, config: IngestionConfig | None = None
) -> DataFrame:
    """All committed records of a topic as ingestion's query hands them over; `without` is an id that is withheld."""
    records = marked(
        spark.read.format("kafka")
        .options(**WITH_HEADERS)
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .load()
    )
    validated = build(records, config or IngestionConfig())
    return validated if without is None else validated.where(f"id <> '{without}'")


def journal(tables: Path) -> pl.DataFrame:
    """The journal's rows of a test's own events, by lsn."""
    return every_row(tables).filter(pl.col("source").is_null() | (pl.col("source") != "weir"), IS_EVENT)


def every_row(tables: Path) -> pl.DataFrame:
    """The journal's rows by lsn."""
    return pl.DataFrame(DeltaTable(f"{tables}/{Table.JOURNAL}").to_pyarrow_table()).sort("lsn")
