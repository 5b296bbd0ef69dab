"""Where a driver's micro-batches come from: the topic `events`, or a Delta table in lsn order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.attempts import Attempts
from jobs.runtime.careful_start import CarefulStart
from jobs.runtime.config import Environment, JobConfig
from jobs.runtime.errors import NotYet, Refused
from jobs.runtime.headroom import TopicRetention, free_share, retention_headroom
from jobs.runtime.isolated import IsolatedRecords
from jobs.runtime.job import PostgresJob, TableJob, TableSink, TopicJob, TopicSink
from jobs.runtime.kafka import LATEST, describe_again, describe_topic, offsets
from jobs.runtime.object_store import readable_by_spark
from jobs.runtime.ownership import Ownership
from jobs.runtime.plain_look import PlainLook
from jobs.runtime.upstream import Upstream
from monitoring import metrics

log = structlog.get_logger()

COPIES = 5
"""A record passes the driver in about so many copies: Kafka's, the row, Arrow's in Java and in Python, the file's."""
READ_ONE_VERSION_SECONDS = 600.0
"""How long a backlog is read from one version of its table: much less than the table's log is kept."""
MAX_BYTES_PER_TRIGGER = "32m"
MAX_FILES_PER_TRIGGER = 20


class Source(Protocol):
    """The input of one driver."""

    trigger: str

    def exists(self) -> bool:
        """Whether there is anything to read from yet."""

    def backlog(self, spark: SparkSession, /) -> Iterator[DataFrame]:
        """Batches to fold before the streaming query, in order."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """The streaming frame that goes on from the sink's position."""

    def has_news(self) -> bool:
        """Whether a batch that comes now may hold records that are not committed."""

    def must_restart(self) -> bool:
        """Whether the query must be built anew."""

    def can_go_on(self) -> bool:
        """Whether a query that failed is to be built anew, because its input is not as it was when it was built."""

    def blame_no_record(self) -> None:
        """Called when the driver stops reading, and it was not for what it read."""

    def advance(self) -> None:
        """Called between batches."""

    def lag(self) -> tuple[int, datetime | None]:
        """Records that are there and not committed, and the frontier of the input if it is known."""


class TopicSource:
    """The topic `events`, from the journal's own positions."""

    def __init__(
        self, job: TopicJob[Any], config: Any, environment: Environment, sink: TopicSink, ownership: Ownership
    ) -> None:
        self._job = job
        self._ownership = ownership
        self.trigger = f"{config.trigger_interval_seconds} seconds"
        self._config = config
        self._sink = sink
        self._kafka = environment.kafka
        self._admin = AdminClient(self._kafka.librdkafka())
        self._limit: int = self._fitting()
        self._retention = TopicRetention(self._admin, config.topic)
        self._tables = environment.tables

    def _fitting(self) -> int:
        budget_bytes = int(self._config.driver_memory_mib) * 1024 * 1024 // COPIES
        fitting: int = budget_bytes // max(1, self._sink.record_bytes())
        return max(1, min(int(self._config.max_records_per_batch), fitting))

    def exists(self) -> bool:
        """True: a topic that does not exist is refused."""
        return True

    def backlog(self, spark: SparkSession) -> Iterator[DataFrame]:
        """None, as long as no start has failed: the topic is one stream from its first record on."""
        topic = describe_topic(self._admin, self._config.topic)
        careful = CarefulStart(
            topic.name,
            lambda records: self._job.build(records, self._config),
            self._sink,
            Attempts(self._ownership),
            IsolatedRecords(self._ownership, topic),
            largest=self._config.max_record_bytes,
        )
        ends = offsets(self._admin, topic, LATEST)
        return careful.batches(spark, lambda: PlainLook(self._kafka, self._admin, topic), ends, self._fitting())

    def stream(self, spark: SparkSession) -> DataFrame:
        """What the job's `build` makes of the records with key, value, topic, partition, offset, timestamp."""
        self._limit = self._fitting()
        if self._limit < self._config.max_records_per_batch:
            log.warning("records are large: batches are made smaller", max_records=self._limit)
        topic = describe_topic(self._admin, self._config.topic)
        positions = self._sink.positions()
        start = {str(p): positions.get(p, -2) for p in topic.partitions}
        records = (
            spark.readStream.format("kafka")
            .options(**self._kafka.spark())
            .option("subscribe", topic.name)
            .option("startingOffsets", json.dumps({topic.name: start}))
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
            .option("maxOffsetsPerTrigger", self._limit)
            .load()
        )
        return self._job.build(records, self._config)

    def has_news(self) -> bool:
        """True: Spark starts no batch on a topic without new offsets."""
        return True

    def must_restart(self) -> bool:
        """True when records have grown so large that a full batch would not fit the driver."""
        return self._fitting() < self._limit // 2

    def can_go_on(self) -> bool:
        """False: nothing changes below a running query."""
        return False

    def blame_no_record(self) -> None:
        """Forget what was tried, so that the next start does not take an orderly end for a record's fault."""
        with suppress(NotYet):
            Attempts(self._ownership).forget()

    def advance(self) -> None:
        """Heartbeats move this job: nothing to do."""

    def lag(self) -> tuple[int, datetime | None]:
        """Kafka's end offsets against the journal's positions."""
        topic = describe_again(self._admin, self._config.topic)
        ends = offsets(self._admin, topic, LATEST)
        positions = self._sink.positions()
        unread = {partition: max(0, end - positions.get(partition, 0)) for partition, end in ends.items()}
        self._show_headroom(unread)
        return sum(unread.values()), None

    def _show_headroom(self, unread: Mapping[int, int]) -> None:
        limits, now = self._retention.limits(), datetime.now(UTC)
        left = retention_headroom(limits, unread, self._sink.record_bytes(), self._sink.frontier(), now)
        metrics.RETENTION_HEADROOM.set(left)
        if (free := free_share(self._tables)) is not None:
            metrics.TABLES_FREE.set(free)


class TableSource:
    """A Delta table: first what is there, in chunks by lsn, then its commits as they come."""

    trigger = "0 seconds"

    def __init__(
        self, job: TableJob[Any] | PostgresJob[Any], config: JobConfig, environment: Environment, sink: TableSink
    ) -> None:
        self._job = job
        self._path = readable_by_spark(f"{environment.tables}/{job.reads}")
        self._chunk = config.max_records_per_batch
        self._sink = sink
        self._upstream = Upstream(environment.tables, job.reads)
        self._version = 0
        self._columns: tuple[str, ...] = ()

    def exists(self) -> bool:
        """Whether the job before this one has made the table."""
        self._upstream.refresh()
        if self._upstream.version is None and self._sink.position() > 1:
            raise Refused(
                f"{self._job.name} has read {self._job.reads} up to lsn {self._sink.position() - 1}, but there is no "
                f"table at {self._path}; restore it, or name the folder or bucket where it is"
            )
        return self._upstream.version is not None

    def backlog(self, spark: SparkSession) -> Iterator[DataFrame]:
        """What the table holds beyond the sink's position, cut into bounded ranges of lsn.

        The log of the version that is read expires while a long backlog lasts, so it is opened anew now and then; and
        it ends only with a version that was read in one range, so that the stream begins where the log still reaches.
        """
        self._upstream.refresh()
        self._sink.verify(self._upstream)
        is_recent = False
        while not is_recent:
            is_recent = self._upstream.next_lsn - self._sink.position() <= self._chunk
            yield from self._chunks(spark)
            self._upstream.refresh()

    def _chunks(self, spark: SparkSession) -> Iterator[DataFrame]:
        self._version = self._upstream.version or 0
        self._columns = self._upstream.columns
        end, opened = self._upstream.next_lsn, time.monotonic()
        if self._sink.position() >= end:
            return
        table = spark.read.format("delta").option("versionAsOf", self._version).load(self._path)
        while (first := self._sink.position()) < end and time.monotonic() < opened + READ_ONE_VERSION_SECONDS:
            before = min(first + self._chunk, end)
            chunk = (F.col("lsn") >= first) & (F.col("lsn") < before)
            yield table.where(chunk).select(*self._job.columns)
            if self._sink.position() == first:
                raise Refused(
                    f"{self._job.name} is at lsn {first}, but {self._path} has no row from there to {before - 1}, but "
                    "its log says it has: rows were deleted before they were read; restore the "
                    f"{self._job.reads} that has them"
                )

    def stream(self, spark: SparkSession) -> DataFrame:
        """Commits from the version that the backlog ended with; the sink cuts what it knows."""
        return (
            spark.readStream.format("delta")
            .option("startingVersion", self._version)
            .option("skipChangeCommits", "true")
            .option("maxFilesPerTrigger", MAX_FILES_PER_TRIGGER)
            .option("maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER)
            .load(self._path)
            .select(*self._job.columns)
        )

    def has_news(self) -> bool:
        """Whether the table goes on after the sink's position."""
        self._upstream.refresh()
        return self._upstream.next_lsn > self._sink.position()

    def must_restart(self) -> bool:
        """Never: batches are bounded by files."""
        return False

    def blame_no_record(self) -> None:
        """Rows of a table are ours: none is given up."""

    def can_go_on(self) -> bool:
        """True when the table got columns, or its log no longer reaches back to where the query began.

        Spark ends a stream at a commit that adds columns, before it reads what follows it; and one that is further
        behind than the log reaches. Both begin anew with what the table holds beyond the sink's position.
        """
        self._upstream.refresh()
        return self._upstream.columns != self._columns or not self._upstream.reaches(self._version)

    def advance(self) -> None:
        """Let the sink see that time passes."""
        self._sink.advance()

    def lag(self) -> tuple[int, datetime | None]:
        """The table's next lsn against the sink's position."""
        self._upstream.refresh()
        return max(0, self._upstream.next_lsn - self._sink.position()), self._upstream.frontier
