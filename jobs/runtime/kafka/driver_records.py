"""A few new records of topics, read by the driver: for these Spark needs longer to plan than to read."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.headers import COLUMN, text_of
from jobs.runtime.kafka.marks import MARKS, mark_in
from jobs.runtime.kafka.records import RECORDS
from jobs.runtime.kafka.topic import COMMITTED, EARLIEST, LATEST, Topic, offsets


@dataclass(frozen=True)
class TopicLimits:
    """What is few: beyond either, and where reading takes longer, records are for Spark."""

    offsets: int = 1_000
    value_bytes: int = 1 << 20
    seconds: float = 5.0


class DriverRecords:
    """Reads the committed records of topics from given positions to their ends, if they are few."""

    def __init__(self, kafka: KafkaSettings, admin: AdminClient, few: TopicLimits = TopicLimits()) -> None:
        self._admin = admin
        self._most = few
        # Spark's thread may ask while the driver's does.
        self._turn = threading.Lock()
        self._consumer = Consumer(
            {
                **kafka,
                **COMMITTED,
                # Report the end, because after the last record there may be offsets without a record.
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                # What is larger than a few records, packed or not, is refused by the library, and so for Spark.
                "queued.max.messages.kbytes": few.value_bytes >> 10,
                "fetch.max.bytes": 4 * few.value_bytes,
                "receive.message.max.bytes": 8 * few.value_bytes,
            }
        )

    def read(self, topics: Sequence[Topic], positions: Mapping[str, Mapping[int, int]]) -> pa.Table | None:
        """What is committed now (RECORDS), from `positions` (by topic) on; None where they are for Spark to read.

        A partition without a position begins with the first that it holds. Records are for Spark where a position is
        of no partition of its topic, where those of all topics are many or large, and where the brokers do not give
        them or the library cannot.
        """
        new: dict[tuple[str, int], tuple[int, int]] = {}
        try:
            for topic in topics:
                unread = self._unread(topic, positions.get(topic.name, {}))
                if unread is None:
                    return None
                new |= {(topic.name, partition): offsets_of for partition, offsets_of in unread.items()}
            if sum(end - first for first, end in new.values()) > self._most.offsets:
                return None
            with self._turn:
                return self._read(new)
        except (KafkaException, SystemError):
            return None

    def _unread(self, topic: Topic, positions: Mapping[int, int]) -> dict[int, tuple[int, int]] | None:
        """By partition with new offsets the first, and the end; None where a position is not of this topic."""
        ends = offsets(self._admin, topic, LATEST, IsolationLevel.READ_COMMITTED)
        if not positions.keys() <= ends.keys():
            return None
        if positions.keys() < ends.keys():
            positions = {**offsets(self._admin, topic, EARLIEST), **positions}
        if any(positions[partition] > end for partition, end in ends.items()):
            return None
        return {p: (positions[p], end) for p, end in ends.items() if positions[p] < end}

    def _read(self, new: Mapping[tuple[str, int], tuple[int, int]]) -> pa.Table | None:
        """`new`: by topic and partition the first offset, and the end that is to be reached."""
        found: list[Message] = []
        waited_for, size_bytes, deadline = set(new), 0, time.monotonic() + self._most.seconds
        self._consumer.assign([TopicPartition(*place, first) for place, (first, _) in new.items()])
        try:
            while waited_for:
                for message in self._consumer.consume(self._most.offsets, timeout=0.02):
                    error = message.error()
                    if error is None:
                        found.append(message)
                        size_bytes += _size_bytes(message)
                        if size_bytes > self._most.value_bytes:
                            return None
                    elif error.code() == KafkaError._PARTITION_EOF:
                        place, end = (message.topic() or "", message.partition() or 0), message.offset() or 0
                        # A late report may be of an end before these records, or of another partition.
                        if place in new and end >= new[place][1]:
                            waited_for.discard(place)
                    else:
                        raise KafkaException(error)
                if time.monotonic() > deadline:
                    return None
        finally:
            # Else it would go on reading what Spark is to read.
            self._consumer.unassign()
        return _table(found)

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


def _size_bytes(message: Message) -> int:
    """Unpacked size, including what is not read: the library holds that, too."""
    headers = sum(len(name) + len(value or b"") for name, value in _headers(message))
    return len(message.key() or b"") + len(message.value() or b"") + headers


_HEADERS = methodcaller("headers")
"""Of a name that is no UTF-8 the library leaves an error behind and gives a list with a hole, in which Python would
fall. Called so, and not by a byte code that trusts the library, the error is raised."""


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    """Raises SystemError for a name that is not UTF-8; after that the message must not be used again."""
    return _HEADERS(message) or []


def _table(messages: list[Message]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "topic": [message.topic() for message in messages],
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        # What a producer stamped is never read, and may be more than an instant can be.
        "timestamp": [milliseconds * 1_000 if is_stamp else 0 for is_stamp, milliseconds in map(_stamp, messages)],
        "timestampType": [int(is_stamp) for is_stamp, _ in map(_stamp, messages)],
    }
    headers = [_headers(message) for message in messages]
    columns[COLUMN] = [text_of(record_headers) for record_headers in headers]
    columns |= {
        column: [mark_in(record_headers, header) for record_headers in headers] for column, header in MARKS.items()
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in RECORDS], RECORDS)


def _stamp(message: Message) -> tuple[bool, int]:
    """Whether the broker stamped it, and when; milliseconds."""
    kind, milliseconds = message.timestamp()
    return kind == TIMESTAMP_LOG_APPEND_TIME, milliseconds
