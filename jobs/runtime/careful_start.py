"""A start after one that failed: a plain look at the next records before Spark reads any of them.

What is too large, what an operator skips and what fails alone again and again becomes a dead letter; all other records
take the usual way in batches so small that the next failure tells them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.attempts import ALONE_LIMIT, Attempt, Attempts
from jobs.runtime.isolated import Isolated, IsolatedRecords, Isolation
from jobs.runtime.job import TopicSink
from jobs.runtime.plain_look import PlainLook
from jobs.runtime.record_batches import TOO_LARGE, LogRecord

log = structlog.get_logger()

BUDGET_BYTES = 32 << 20
KEPT_LIMIT = ALONE_LIMIT + 1
"""A record that has ended the driver more often is journalled without its value."""
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""As Spark's Kafka source names them."""

Build = Callable[[DataFrame], DataFrame]
"""Records (RECORDS) → what the sink takes; among it `value`."""


class CarefulStart:
    """The batches of one topic that come before Spark reads it again: none, as long as no start has failed."""

    def __init__(
        self, topic: str, build: Build, sink: TopicSink, attempts: Attempts, isolated: IsolatedRecords, *, largest: int
    ) -> None:
        """`largest`: most bytes of key and value of a record that is judged."""
        self._topic = topic
        self._build = build
        self._sink = sink
        self._attempts = attempts
        self._isolated = isolated
        self._largest = largest

    def batches(
        self, spark: SparkSession, look: Callable[[], PlainLook], ends: Mapping[int, int], most: int
    ) -> Iterator[DataFrame]:
        """What was there when the last start failed, as the sink takes it; nothing after a start that went well.

        `ends`: where the partitions end now. `most`: most records of a batch of Spark's.
        """
        attempt = self._attempts.next(self._positions(), most)
        looked: PlainLook | None = None
        while attempt.is_careful and self._is_behind(ends):
            looked = looked or look()
            records = self._next(looked, attempt)
            if not records:
                break
            attempt = replace(attempt, partition=records[0].partition if attempt.records == 1 else None)
            log.warning("a start failed here: records are looked at first", at=dict(attempt.positions), of=len(records))
            if attempt.records == 1 and not attempt.must_give_up:
                # A driver that cannot judge anything shall not take it for this record's fault.
                self._build(_frame(spark, [_BLANK], self._topic)).toArrow()
            self._attempts.begin(attempt)
            pending = self._isolated.pending()
            good = [] if attempt.must_give_up else _before_isolated(records, pending)
            yield self._judged(spark, good) if good else self._dead(spark, records[0], attempt, pending)
            attempt = attempt.passed(len(good) or 1, self._positions(), most)
        if self._is_behind(ends):
            self._attempts.begin(Attempt(self._positions(), most))
        else:
            self._attempts.forget()

    def _positions(self) -> dict[int, int]:
        return dict(self._sink.positions())

    def _is_behind(self, ends: Mapping[int, int]) -> bool:
        positions = self._positions()
        return any(positions.get(partition, 0) < end for partition, end in ends.items())

    def _next(self, look: PlainLook, attempt: Attempt) -> list[LogRecord]:
        positions, limits = self._positions(), (attempt.records, BUDGET_BYTES, self._largest)
        if attempt.partition is not None:
            # The one that failed alone, and no other that came first meanwhile.
            return look.next_records(positions, *limits, only=attempt.partition)
        return look.next_records(positions, *limits)

    def _judged(self, spark: SparkSession, records: list[LogRecord]) -> DataFrame:
        return self._build(_frame(spark, records, self._topic))

    def _dead(self, spark: SparkSession, record: LogRecord, attempt: Attempt, pending: Isolated) -> DataFrame:
        """One record that the sink rejects, because it finds it among the isolated ones."""
        place = (record.partition, record.offset)
        if place not in pending:
            reason = Isolation.TOO_LARGE if record.problem == TOO_LARGE else Isolation.UNREADABLE
            detail = record.problem if record.problem is not None else self._attempts.last_words()
            log.error("a record becomes a dead letter", reason=reason, place=place, bytes=record.size_bytes, why=detail)
            self._isolated.add(place, reason, detail, record.size_bytes)
        blank = self._judged(spark, [replace(record, value=None)])
        # Its value is kept, unless the driver ends also when it only passes it on.
        keeps_value = record.value is not None and attempt.failed_alone <= KEPT_LIMIT
        return blank.withColumn("value", F.lit(record.value)) if keeps_value else blank


_BLANK = LogRecord(0, 0, 0, True, 2, None, b"{}")


def _before_isolated(records: list[LogRecord], pending: Isolated) -> list[LogRecord]:
    def is_judged(record: LogRecord) -> bool:
        return record.problem is None and (record.partition, record.offset) not in pending

    return list(itertools.takewhile(is_judged, records))


def _frame(spark: SparkSession, records: list[LogRecord], topic: str) -> DataFrame:
    columns: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "topic": [topic] * len(records),
        "partition": [record.partition for record in records],
        "offset": [record.offset for record in records],
        "timestamp": [record.timestamp_ms * 1_000 for record in records],
        "timestampType": [int(record.is_append_time) for record in records],
    }
    return spark.createDataFrame(pa.table([pa.array(columns[field.name], field.type) for field in RECORDS], RECORDS))
