"""A start after a failed one: a raw scan of the next records before Spark reads any of them.

A record that is too large, that an operator skips, or that repeatedly cannot be validated alone becomes a dead letter.
All other records are processed as usual, in batches so small that the next failure tells them apart; that takes another
start only where the failure ends Java. A failure after a record was validated (a sink that does not commit) is not the
record's fault, and ends the driver each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.job import TopicSink
from jobs.runtime.kafka.protocol.log_records import TOO_LARGE, LogRecord
from jobs.runtime.kafka.quarantine.attempts import ALONE_LIMIT, Attempt, Attempts
from jobs.runtime.kafka.quarantine.isolated_records import Isolated, IsolatedRecords
from jobs.runtime.kafka.quarantine.raw_scan import RawScan
from jobs.runtime.kafka.quarantine.scanned_records import (
    as_frame,
    first_known,
    first_unknown,
    good_record,
    unpacked_with,
)
from jobs.runtime.kafka.records import RECORDS
from jobs.runtime.spark import java_runs
from jobs.runtime.transient_errors import CANNOT_FETCH, transient_error_of
from metering.instants import Clock
from metering.vocabulary import Isolation

log = structlog.get_logger()

BUDGET_BYTES = 32 << 20
KEPT_LIMIT = ALONE_LIMIT + 1
"""A record that has ended the driver more often is journalled without its value."""

VALIDATION_ERRORS = (PySparkException, Py4JError, pa.ArrowException, ValueError, ArithmeticError)
"""What reading or validating records raises while Java survives; not errors of a database, a broker or a fence."""

Build = Callable[[DataFrame], DataFrame]
"""Records (RECORDS) → what the sink takes; among it `value`."""
Read = Callable[[SparkSession, int, int, int], DataFrame]
"""What Spark's own Kafka source reads of a partition's offsets [first, end) (RECORDS, and more)."""


class QuarantineStart:
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
        clock: Clock,
    ) -> None:
        """`largest`: most bytes of key and value of a record that is validated."""
        self._topic = topic
        self._build = build
        self._read = read
        self._sink = sink
        self._attempts = attempts
        self._isolated = isolated
        self._largest = largest
        self._clock = clock
        self._is_able = False
        self._why = ""

    def batches(
        self, spark: SparkSession, look: Callable[[], RawScan], ends: Mapping[int, int], most: int
    ) -> Iterator[DataFrame]:
        """What was there when the last start failed, as the sink takes it; nothing after a start that went well.

        `ends`: where the partitions end now. `most`: most records of a batch of Spark's.
        """
        attempt = self._attempts.next(self._positions(), most)
        looked: RawScan | None = None
        while attempt.is_quarantined and self._is_behind(ends):
            looked = looked or look()
            records = self._next(looked, attempt)
            if not records:
                break
            attempt = self._standing(attempt, records)
            log.warning(
                "ingestion ended here before: it reads these records with care, a few at a time",
                at=dict(attempt.positions),
                of=len(records),
            )
            try:
                batch, taken = self._validated(spark, records, attempt)
            except VALIDATION_ERRORS as error:
                self._raise_unless_theirs(error, spark, looked, attempt)
                attempt = attempt.failed()
                continue
            if attempt.records == 1:
                # What else the sink takes comes without the record, which is not named where that fails.
                yield batch.limit(0)
                self._attempts.begin(replace(attempt, is_blameless=True))
            before = self._positions()
            yield batch
            if self._positions() == before:
                log.warning("Spark found no record at this offset and reads on", offset=records[0].offset)
                break
            attempt = attempt.passed(taken, self._positions(), most)
        # With nothing to read now, no record can be the reason if this driver ends before it reads one.
        self._attempts.begin(Attempt(self._positions(), most, is_blameless=not self._is_behind(ends)))

    def _standing(self, attempt: Attempt, records: list[LogRecord]) -> Attempt:
        """`attempt` as of what comes next: alone is one record, or what is unpacked only together."""
        unknown = first_unknown(records, self._isolated.pending())
        if unknown and unknown[-1].offset <= (unknown[0].unpacked_with or unknown[0].offset):
            attempt = attempt.alone
        return replace(attempt, partition=records[0].partition if attempt.records == 1 else None)

    def _validated(self, spark: SparkSession, records: list[LogRecord], attempt: Attempt) -> tuple[DataFrame, int]:
        """What comes next as the sink takes it, validated already, and how many offsets that is."""
        is_alone = attempt.records == 1
        if is_alone and not attempt.must_give_up and not self._is_able:
            # A driver that cannot validate anything must not blame this record.
            self._validate_good_record(spark, attempt)
        self._attempts.begin(attempt)
        batch, taken = self._batch(spark, records, attempt)
        validated = batch.toArrow()
        if is_alone:
            # What fails from now on is not its fault.
            self._attempts.begin(replace(attempt, partition=None, is_blameless=True))
            log.warning("one record alone, and validated: if ingestion ends now, fix the error that follows")
        return spark.createDataFrame(validated, batch.schema), taken

    def _validate_good_record(self, spark: SparkSession, attempt: Attempt) -> None:
        self._attempts.begin(replace(attempt, is_blameless=True))
        self._build(as_frame(spark, [good_record(self._clock.now())], self._topic)).toArrow()
        self._is_able = True

    def _raise_unless_theirs(self, error: Exception, spark: SparkSession, look: RawScan, attempt: Attempt) -> None:
        """Raise `error` unless it is the fault of the records of `attempt`, as far as this driver can tell.

        It is theirs if a good record is validated right after it, or if Java's client does not deliver what the raw
        scan finds. A driver that was asked to stop validates nothing more.
        """
        is_unfetched = bool(CANNOT_FETCH.search(str(error)))
        is_transient = transient_error_of(error) is not None and not is_unfetched
        if is_transient or not java_runs(spark) or attempt.failures_alone > KEPT_LIMIT:
            raise error
        if is_unfetched and not self._next(look, attempt):
            raise error
        self._validate_good_record(spark, attempt)
        self._why = f"{type(error).__name__}: {error}"
        log.warning("records could not be validated", at=dict(attempt.positions), times=attempt.failures_alone + 1)

    def _positions(self) -> dict[int, int]:
        return dict(self._sink.positions()[self._topic])

    def _is_behind(self, ends: Mapping[int, int]) -> bool:
        positions = self._positions()
        return any(positions.get(partition, 0) < end for partition, end in ends.items())

    def _next(self, look: RawScan, attempt: Attempt) -> list[LogRecord]:
        positions, limits = self._positions(), (attempt.records, BUDGET_BYTES, self._largest)
        if attempt.partition is not None:
            # The one that failed alone, and no other that came first meanwhile.
            return look.next_records(positions, *limits, only=attempt.partition)
        return look.next_records(positions, *limits)

    def _batch(self, spark: SparkSession, records: list[LogRecord], attempt: Attempt) -> tuple[DataFrame, int]:
        """What comes next as the job's `build` makes it, and how many offsets that is."""
        pending = self._isolated.pending()
        first = records[0]
        if attempt.must_give_up or pending.get(first.place, Isolation.TOO_LARGE) is not Isolation.TOO_LARGE:
            given_up = unpacked_with(first) if attempt.must_give_up else [first]
            return self._dead(spark, given_up, attempt, pending), len(given_up)
        if unknown := first_unknown(records, pending):
            # This reader may be wrong: Spark's decides.
            found = self._read(spark, first.partition, first.offset, unknown[-1].offset + 1)
            return self._build(found.select(RECORDS.names)), len(unknown)
        known = first_known(records, pending)
        self._give_up([record for record in known if record.problem == TOO_LARGE], Isolation.TOO_LARGE, TOO_LARGE)
        return self._build(as_frame(spark, known, self._topic)), len(known)

    def _dead(self, spark: SparkSession, records: list[LogRecord], attempt: Attempt, pending: Isolated) -> DataFrame:
        """Records that the sink rejects, because it finds them among the isolated ones."""
        first = records[0]
        why = self._why or self._attempts.last_error()
        reason = Isolation.TOO_LARGE if first.problem == TOO_LARGE else Isolation.UNREADABLE
        self._give_up(
            [record for record in records if record.place not in pending],
            reason,
            f"{why}; {first.problem}" if first.is_unknown else why,
        )
        blank = self._build(as_frame(spark, [replace(record, value=None) for record in records], self._topic))
        # Its value is kept, unless the driver ends also when it only passes it on.
        keeps_value = first.value is not None and attempt.failures_alone <= KEPT_LIMIT
        return blank.withColumn("value", F.lit(first.value)) if keeps_value else blank

    def _give_up(self, records: list[LogRecord], reason: Isolation, why: str) -> None:
        if records:
            self._isolated.add({record.place: record.size_bytes for record in records}, reason, why)
