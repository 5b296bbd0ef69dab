"""Records of a raw scan: which are validated together, and in the form that Spark's source would give."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.kafka import headers
from jobs.runtime.kafka.heartbeat import heartbeat
from jobs.runtime.kafka.marks import RECEPTION_MARK, REPLAY_MARK
from jobs.runtime.kafka.protocol.log_records import TOO_LARGE, LogRecord
from jobs.runtime.kafka.quarantine.isolated_records import Isolated
from jobs.runtime.kafka.records import RECORDS

MAX_GIVEN_UP = 100_000
"""How many records of a batch that cannot be unpacked one verdict gives up: it holds for all of them."""


def good_record(now: datetime) -> LogRecord:
    """One that any driver can validate."""
    return LogRecord(0, 0, 0, True, 0, b"weir", heartbeat(0, 0, now))


def unpacked_with(record: LogRecord) -> list[LogRecord]:
    """The record, and those of its batch after it that cannot be unpacked without it."""
    last = record.offset if record.unpacked_with is None else record.unpacked_with
    end = min(last + 1, record.offset + MAX_GIVEN_UP)
    return [replace(record, offset=offset) for offset in range(record.offset, end)]


def first_unknown(records: list[LogRecord], pending: Isolated) -> list[LogRecord]:
    """The first records of the first one's partition that this reader could not read."""

    def is_next(record: LogRecord) -> bool:
        return record.is_unknown and record.partition == records[0].partition and record.place not in pending

    return list(itertools.takewhile(is_next, records))


def first_known(records: list[LogRecord], pending: Isolated) -> list[LogRecord]:
    """The records before the first that is skipped, or that this reader could not read."""

    def is_known(record: LogRecord) -> bool:
        return record.problem == TOO_LARGE or (record.problem is None and record.place not in pending)

    return list(itertools.takewhile(is_known, records))


def as_frame(spark: SparkSession, records: list[LogRecord], topic: str) -> DataFrame:
    """The records as RECORDS."""
    columns: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "topic": [topic] * len(records),
        "partition": [record.partition for record in records],
        "offset": [record.offset for record in records],
        # What a producer stamped is never read, and may be more than an instant can be.
        "timestamp": [record.timestamp_ms * 1_000 if record.is_append_time else 0 for record in records],
        "timestampType": [int(record.is_append_time) for record in records],
        headers.COLUMN: [record.headers for record in records],
        REPLAY_MARK: [record.replay_mark for record in records],
        RECEPTION_MARK: [record.reception_mark for record in records],
    }
    return spark.createDataFrame(pa.table([pa.array(columns[field.name], field.type) for field in RECORDS], RECORDS))
