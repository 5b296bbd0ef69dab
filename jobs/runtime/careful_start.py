"""A start after one that failed: a plain look at the next records before Spark reads any of them.

What is too large, what an operator skips and what cannot be judged alone, again and again, becomes a dead letter; all
other records take the usual way in batches so small that the next failure tells them apart. A failure after a record
was judged (a sink that does not commit) is not the record's, and ends the driver as often as it comes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.attempts import ALONE_LIMIT, Attempt, Attempts
from jobs.runtime.heartbeat import heartbeat
from jobs.runtime.isolated import Isolated, IsolatedRecords, Isolation
from jobs.runtime.job import TopicSink
from jobs.runtime.log_records import TOO_LARGE, LogRecord
from jobs.runtime.plain_look import PlainLook

log = structlog.get_logger()

BUDGET_BYTES = 32 << 20
KEPT_LIMIT = ALONE_LIMIT + 1
"""A record that has ended the driver more often is journalled without its value."""
MOST_GIVEN_UP = 1_000
"""Of a batch that cannot be unpacked, so many records are given up by one verdict: it is of all of them."""
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
Read = Callable[[SparkSession, int, int, int], DataFrame]
"""What Spark's own Kafka source reads of a partition's offsets [first, end) (RECORDS, and more)."""


class CarefulStart:
    """The batches of one topic that come before Spark reads it again: none, as long as no start has failed."""

    def __init__(
        self,
        topic: str,
        build: Build,
        sink: TopicSink,
        attempts: Attempts,
        isolated: IsolatedRecords,
        *,
        read: Read,
        largest: int,
    ) -> None:
        """`largest`: most bytes of key and value of a record that is judged."""
        self._topic = topic
        self._build = build
        self._read = read
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
        is_able = False
        while attempt.is_careful and self._is_behind(ends):
            looked = looked or look()
            records = self._next(looked, attempt)
            if not records:
                break
            attempt = replace(attempt, partition=records[0].partition if attempt.records == 1 else None)
            log.warning("a start failed here: records are looked at first", at=dict(attempt.positions), of=len(records))
            if attempt.records == 1 and not attempt.must_give_up and not is_able:
                # A driver that cannot judge anything shall not take it for this record's fault.
                self._attempts.begin(replace(attempt, is_blameless=True))
                self._build(_frame(spark, [_good()], self._topic)).toArrow()
                is_able = True
            self._attempts.begin(attempt)
            batch, taken = self._batch(spark, records, attempt)
            if attempt.records == 1:
                batch = self._judged_alone(spark, batch, records[0], attempt)
            yield batch
            if self._positions() == dict(attempt.positions):
                log.warning("Spark found no record there: it reads on by itself", offset=records[0].offset)
                break
            attempt = attempt.passed(taken, self._positions(), most)
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

    def _batch(self, spark: SparkSession, records: list[LogRecord], attempt: Attempt) -> tuple[DataFrame, int]:
        """What comes next as the sink takes it, and how many offsets that is."""
        pending = self._isolated.pending()
        first = records[0]
        if attempt.must_give_up or first.problem == TOO_LARGE or (first.partition, first.offset) in pending:
            given_up = _unpacked_with(first) if attempt.must_give_up else [first]
            return self._dead(spark, given_up, attempt, pending), len(given_up)
        if unknown := _unknown(records, pending):
            # It may be this reader that is wrong: Spark's shall say.
            found = self._read(spark, first.partition, first.offset, unknown[-1].offset + 1)
            return self._build(found.select(RECORDS.names)), len(unknown)
        good = _good_before(records, pending)
        return self._build(_frame(spark, good, self._topic)), len(good)

    def _judged_alone(self, spark: SparkSession, batch: DataFrame, record: LogRecord, attempt: Attempt) -> DataFrame:
        """One record after it was judged, here: what fails from now on is not its fault."""
        judged = batch.toArrow()
        self._attempts.begin(replace(attempt, is_blameless=True))
        log.warning(
            "one record alone: if ingestion ends again and again here, see to what it says; "
            f"`weir journal skip {self._topic} {record.partition} {record.offset} --reason TEXT` goes on without it"
        )
        return spark.createDataFrame(judged, batch.schema)

    def _dead(self, spark: SparkSession, records: list[LogRecord], attempt: Attempt, pending: Isolated) -> DataFrame:
        """Records that the sink rejects, because it finds them among the isolated ones."""
        first = records[0]
        places = [place for record in records if (place := (record.partition, record.offset)) not in pending]
        if places:
            reason = Isolation.TOO_LARGE if first.problem == TOO_LARGE else Isolation.UNREADABLE
            detail = first.problem if reason is Isolation.TOO_LARGE and first.problem else self._attempts.last_words()
            if first.is_unknown:
                detail = f"{detail}; {first.problem}"
            log.error("a record becomes a dead letter", reason=reason, at=places[:10], of=len(places), why=detail)
            self._isolated.add(places, reason, detail, first.size_bytes)
        blank = self._build(_frame(spark, [replace(record, value=None) for record in records], self._topic))
        # Its value is kept, unless the driver ends also when it only passes it on.
        keeps_value = first.value is not None and attempt.failed_alone <= KEPT_LIMIT
        return blank.withColumn("value", F.lit(first.value)) if keeps_value else blank


def _good() -> LogRecord:
    return LogRecord(0, 0, 0, True, 0, b"weir", heartbeat(0, 0, datetime.now(UTC)))


def _unpacked_with(record: LogRecord) -> list[LogRecord]:
    """The record, and those of its batch after it that cannot be unpacked without it."""
    last = record.offset if record.unpacked_with is None else record.unpacked_with
    end = min(last + 1, record.offset + MOST_GIVEN_UP)
    return [replace(record, offset=offset) for offset in range(record.offset, end)]


def _unknown(records: list[LogRecord], pending: Isolated) -> list[LogRecord]:
    def is_next(record: LogRecord) -> bool:
        place = (record.partition, record.offset)
        return record.is_unknown and record.partition == records[0].partition and place not in pending

    return list(itertools.takewhile(is_next, records))


def _good_before(records: list[LogRecord], pending: Isolated) -> list[LogRecord]:
    def is_good(record: LogRecord) -> bool:
        return record.problem is None and (record.partition, record.offset) not in pending

    return list(itertools.takewhile(is_good, records))


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
