"""Where micro-batches come from: the topics of events, from the journal's own positions."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.delta.new_files import Exchanged, Folder
from jobs.runtime.delta.object_store import storage_options
from jobs.runtime.errors import Fenced, NotYet
from jobs.runtime.headroom import (
    Lasting,
    RetentionLimits,
    TopicRetention,
    free_share,
    least_retention,
    retention_headroom,
)
from jobs.runtime.idle_trigger import IdleTrigger
from jobs.runtime.job import Context, TopicJob, TopicSink
from jobs.runtime.kafka.driver_records import DriverRecords
from jobs.runtime.kafka.look_interval import LookInterval
from jobs.runtime.kafka.marks import WITH_HEADERS, marked
from jobs.runtime.kafka.quarantine.attempts import Attempt, Attempts
from jobs.runtime.kafka.quarantine.isolated_records import IsolatedRecords
from jobs.runtime.kafka.quarantine.quarantine_start import QuarantineStart
from jobs.runtime.kafka.quarantine.raw_scan import RawScan
from jobs.runtime.kafka.topic import LATEST, Topic, describe_read_topic, describe_topic, offsets
from jobs.runtime.kafka.topic_lag import topic_lags
from jobs.runtime.transient_errors import CANNOT_FETCH, transient_error_of
from metering.vocabulary import Family
from monitoring import metrics

log = structlog.get_logger()


COPIES = 5
"""A record passes the driver in about so many copies: Kafka's, the row, Arrow's in Java and in Python, the file's."""
FEW_RECORDS_TIMEOUT_MS = 15_000
LOOK_SECONDS = 1.0
"""How often the driver looks around, at least."""
FIRST_LOOK_SECONDS = 0.25
"""From the start of the query to the first look."""
MAX_GROWTH = 10
"""By what factor batches grow at once: what follows may be as large as what had made them small."""


def _are_heartbeats(found: pa.Table) -> bool:
    """Whether validated records are heartbeats and nothing else."""
    is_heartbeat = pc.fill_null(pc.equal(found["family"], Family.HEARTBEAT.value), False)
    return bool(pc.all(is_heartbeat, min_count=0).as_py())


def _taken(offsets_by_topic: Mapping[str, Mapping[int, int]]) -> int:
    return sum(sum(of_partitions.values()) for of_partitions in offsets_by_topic.values())


class TopicSource(IdleTrigger):
    """Reads the topics of events from the journal's own positions; the query is idle while the driver can itself."""

    just_started_seconds = 30.0
    """As long after a start the driver looks as often as while events come: who starts it is about to send some."""

    def __init__(self, job: TopicJob[Any], context: Context[Any], sink: TopicSink) -> None:
        config, environment = context.config, context.environment
        self._job = job
        self._ownership = context.ownership
        self._clock, self._denials = context.clock, context.denials
        self._config = config
        self._interval = LookInterval(config.trigger_interval_seconds, config.min_trigger_interval_seconds)
        self._watched_seconds, self._has_come = 0.0, True
        self._until_due, self._used_cpu_seconds = 0, time.process_time()
        self.look_seconds = min(FIRST_LOOK_SECONDS, self._interval.usual)
        self._just_started_until = context.clock.monotonic() + self.just_started_seconds
        self._sink = sink
        self._kafka = environment.kafka
        self._admin = AdminClient(self._kafka.librdkafka())
        self._limit: int = self._fitting()
        self._unread, self._began_at = 0, 0
        self._by_topic: list[dict[str, Any]] = []
        self._retention: dict[str, Any] = {}
        self._validate, self._few = job.validator(config), DriverRecords(self._kafka.librdkafka(), self._admin)
        self._topics: tuple[Topic, ...] = ()
        """Those that the query reads, as the broker knew them then."""
        self._kept = {
            name: (TopicRetention(self._admin, name, context.clock), Lasting(context.clock)) for name in config.topics
        }
        self._tables = environment.tables
        # Beside the checkpoints, which the next start removes, too.
        self._folder = environment.checkpoints / job.name / str(context.ownership.epoch) / "validated"

    def _fitting(self) -> int:
        budget_bytes = int(self._config.driver_memory_mib) * 1024 * 1024 // COPIES
        fitting: int = budget_bytes // max(1, self._sink.batch_bytes_per_record())
        return max(1, min(int(self._config.max_records_per_batch), fitting))

    def exists(self) -> bool:
        """True: a topic that does not exist is refused."""
        return True

    def backlog(self, spark: SparkSession) -> Iterator[DataFrame]:
        """None as long as no start has failed: a topic is one stream from its first record on.

        One topic comes after the other, each with its own attempts.
        """
        return chain.from_iterable(
            self._backlog_of(topic, spark, offsets(self._admin, topic, LATEST)) for topic in self._described()
        )

    def _described(self) -> tuple[Topic, ...]:
        return tuple(describe_topic(self._admin, name, self._denials, self._clock) for name in self._config.topics)

    def _backlog_of(self, topic: Topic, spark: SparkSession, ends: Mapping[int, int]) -> Iterator[DataFrame]:
        start = QuarantineStart(
            topic.name,
            self._built,
            self._sink,
            Attempts(self._ownership, topic.name),
            IsolatedRecords(self._ownership, topic),
            read=partial(self._read, topic.name),
            largest=self._config.max_record_bytes,
            clock=self._clock,
        )
        return start.batches(spark, lambda: RawScan(self._kafka, self._admin, topic), ends, self._fitting())

    def _read(self, topic: str, spark: SparkSession, partition: int, first: int, end: int) -> DataFrame:
        """What Spark's batch source reads of these offsets, and of nothing else."""
        return marked(
            spark.read.format("kafka")
            .options(**self._kafka.spark(), **WITH_HEADERS)
            .option("assign", json.dumps({topic: [partition]}))
            .option("startingOffsets", json.dumps({topic: {str(partition): first}}))
            .option("endingOffsets", json.dumps({topic: {str(partition): end}}))
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
            # The brokers have just delivered it, to the look.
            .option("kafkaConsumer.pollTimeoutMs", FEW_RECORDS_TIMEOUT_MS)
            .load()
        )

    def stream(self, spark: SparkSession) -> DataFrame:
        """What the job's `build` makes of the records (looked_records.RECORDS, and more)."""
        self._limit = min(self._fitting(), MAX_GROWTH * self._limit)
        if self._limit < self._config.max_records_per_batch:
            log.warning("records are large: batches are made smaller", max_records=self._limit)
        self._topics = topics = self._described()
        self._is_idle, self._watched_seconds, self._has_come = self._may_idle(), 0.0, False
        self._until_due = 0
        positions = self._sink.positions()
        self._began_at = _taken(positions)
        start = {topic.name: {str(p): positions[topic.name].get(p, -2) for p in topic.partitions} for topic in topics}
        records = marked(
            spark.readStream.format("kafka")
            .options(**self._kafka.spark(), **WITH_HEADERS)
            # Exactly those that `instead_of` asks for: of one that it does not know it would leave records out.
            .option("assign", json.dumps({topic.name: topic.partitions for topic in topics}))
            .option("startingOffsets", json.dumps(start))
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
            .option("maxOffsetsPerTrigger", self._limit)
            .load()
        )
        return self._job.build(records, self._config, self._empty_place())

    def _empty_place(self) -> Path | Exchanged:
        """Where workers leave what they validated, without what a query that failed has left."""
        if self._sink.driver_rows is not None:
            folder = Folder(f"{self._tables}/{self._job.writes}", storage_options(self._tables))
            beside = Exchanged(folder, self._ownership.epoch)
            beside.clear()
            return beside
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _built(self, records: DataFrame) -> DataFrame:
        """What the job makes of records in a quarantine start, which looks at them itself."""
        return self._job.build(records, self._config, None)

    @property
    def trigger(self) -> str:
        """As configured, or seldom while the query is idle."""
        return f"{self.seldom_seconds if self._is_idle else self._config.trigger_interval_seconds:g} seconds"

    def has_news(self) -> bool:
        """True: Spark starts no batch on a topic without new offsets."""
        return True

    def instead_of(self, batch: DataFrame) -> DataFrame | pa.Table:
        """The records from the sink's positions on, validated here, where they are few; else what Spark's workers
        validated.

        The topics' ends are read now, so they are no less than the batch.
        """
        self._has_come = True
        records = self._read_here()
        return batch if records is None else self._validate(records)

    def found(self) -> pa.Table | None:
        """The same while the query is idle, when a look is due; if there are many, the query is rebuilt."""
        if not self._is_idle:
            return None
        self._watched_seconds += self.look_seconds
        self._until_due -= 1
        if self._until_due > 0:
            return None
        records = self._read_here()
        found = self._validate(records) if records is not None and records.num_rows > 0 else None
        self._plan_next_look(found)
        return found

    def _plan_next_look(self, found: pa.Table | None) -> None:
        """Soon after events. What a look costs is what was used since the one before, with the commit of its batch.

        The driver goes round in equal parts of the interval, so that stopping it need not wait for all of it.
        """
        used, before = time.process_time(), self._used_cpu_seconds
        self._used_cpu_seconds = used
        has_events = found is not None and not _are_heartbeats(found)
        has_just_started = self._clock.monotonic() < self._just_started_until
        seconds = self._interval.after(used - before, has_events=has_events or has_just_started)
        self._until_due = math.ceil(seconds / LOOK_SECONDS)
        self.look_seconds = seconds / self._until_due

    def _read_here(self) -> pa.Table | None:
        """All records from the sink's positions on; None where they are for Spark to read."""
        records = self._few.read(self._topics, self._sink.positions()) if self._topics else None
        if records is None:
            self._leave_to_spark()
        return records

    def _may_idle(self) -> bool:
        """Never before the batch has come that a query was built for, however long the brokers take for it."""
        return (self._is_idle or self._has_come) and super()._may_idle()

    def must_restart(self) -> bool:
        """True when the query must become idle or active again, or a topic has got partitions.

        Also when records have become so large that a full batch would not fit the driver, or batches are smaller than
        they need to be.
        """
        is_idle_wrongly = self._may_idle() != self._is_idle or self._was_idle()
        return is_idle_wrongly or self._has_grown() or self._fitting() < self._limit // 2 or self._is_stalled()

    def _was_idle(self) -> bool:
        """Whether Spark would look by now: one batch may not reach as far as the driver has read, a new query begins
        there.
        """
        return self._watched_seconds >= self.seldom_seconds

    def _is_stalled(self) -> bool:
        """Whether as many were taken as a batch may hold, more are waiting, and by now more would fit.

        Else a few large records would slow down all that ever come.
        """
        taken = _taken(self._sink.positions()) - self._began_at
        return self._limit <= min(taken, self._unread - 1) and self._fitting() > 2 * self._limit

    def _has_grown(self) -> bool:
        """Whether the sink knows of partitions that the query does not read: it takes them up with the next batch."""
        positions = self._sink.positions()
        return any(not set(positions[topic.name]) <= set(topic.partitions) for topic in self._topics)

    def can_go_on(self) -> bool:
        """False: nothing changes below a running query."""
        return False

    def close(self) -> None:
        """Leave the broker."""
        self._few.close()

    def stopped(self) -> None:
        """Let the next start not take an orderly end for a record's fault."""
        with suppress(NotYet):
            for attempts in self._attempts().values():
                attempts.blame_nothing()

    def _attempts(self) -> dict[str, Attempts]:
        return {name: Attempts(self._ownership, name) for name in self._config.topics}

    def failed(self, error: Exception) -> None:
        """The same for an error that is waited out; any other error names the record that was read alone, if any.

        What Java's client does not deliver is looked at first when reading begins again, which waits for the brokers:
        a record that it never delivers would be waited for for ever.
        """
        with suppress(NotYet, Fenced):
            for topic, attempts in self._attempts().items():
                if transient_error_of(error) is None:
                    if (last := attempts.last()) and (remedy := last.remedy(topic)):
                        error.add_note(remedy)
                    continue
                attempts.blame_nothing()
                if CANNOT_FETCH.search(str(error)) and attempts.last() is None:
                    attempts.begin(Attempt.first_look(self._sink.positions()[topic], self._fitting()))

    def advance(self) -> None:
        """Let the sink check what no batch of events brings."""
        self._sink.advance()

    def lag(self) -> tuple[int, datetime | None]:
        """Kafka's end offsets against the journal's positions."""
        unread, ends = {}, {}
        for name in self._config.topics:
            ends[name] = offsets(self._admin, describe_read_topic(self._admin, name), LATEST)
            positions = self._sink.positions()[name]
            unread[name] = {part: max(0, end - positions.get(part, 0)) for part, end in ends[name].items()}
        self._show_headroom(unread, ends)
        self._unread = _taken(unread)
        self._by_topic = topic_lags(unread, self._sink.frontiers(), self._clock.now())
        return self._unread, None

    def lag_by_topic(self) -> list[dict[str, Any]]:
        """As the last `lag` found it."""
        return self._by_topic

    def retention(self) -> dict[str, Any]:
        """As the last `lag` found it: of all topics together."""
        return self._retention

    def _show_headroom(self, unread: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> None:
        """`unread`, `ends`: by topic and partition."""
        now, record_bytes, frontiers = self._clock.now(), self._sink.record_bytes(), self._sink.frontiers()
        found: list[tuple[RetentionLimits, float]] = []
        for name, (retention, lasts) in self._kept.items():
            limits, frontier, left = retention.limits(), frontiers[name], sum(unread[name].values())
            headroom = retention_headroom(limits, unread[name], record_bytes, frontier, now)
            found.append((limits, headroom))
            metrics.RETENTION_HEADROOM.set(headroom, topic=name)
            metrics.TOPIC_UNREAD.set(left, topic=name)
            if frontier is not None:
                metrics.TOPIC_FRONTIER.set(frontier.timestamp(), topic=name)
            # Both are for who must know it when this driver is gone.
            metrics.RETENTION.set(lasts.seconds(limits, ends[name], record_bytes), topic=name)
            if (read_until := frontier if left else now) is not None:
                metrics.READ_UNTIL.set(read_until.timestamp(), topic=name)
        self._retention = least_retention(*zip(*found, strict=True))
        if (free := free_share(self._tables)) is not None:
            metrics.TABLES_FREE.set(free)
