"""What the applications use of Kafka: topics as lists, and the clients that they have of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TopicPartition

from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.errors import Refused
from jobs.runtime.kafka.heartbeat import heartbeat
from jobs.runtime.kafka.protocol.absent_offsets import Gap
from jobs.runtime.kafka.protocol.log_records import LogRecord
from jobs.runtime.kafka.records import RECORDS
from jobs.runtime.kafka.topic import EARLIEST, Topic
from jobs.streams import EVENTS_TOPIC, CatalogTopic
from tests.simulation.calls import outside


@dataclass(frozen=True)
class Record:
    """A record that a broker has stamped."""

    offset: int
    stamp_ms: int
    key: bytes | None
    value: bytes
    mark: bytes | None = None
    first: bytes | None = None
    """When it was received first, as it says."""

    def row(self, topic: str, partition: int) -> dict[str, Any]:
        """As Spark's source gives it."""
        place = {"topic": topic, "partition": partition, "offset": self.offset}
        place |= {"replay_mark": self.mark, "reception_mark": self.first}
        return {**place, "key": self.key, "value": self.value, "timestamp": self.stamp_ms * 1_000, "timestampType": 1}


Log = list[Record | None]
"""None: an offset that holds no record, as the end of a transaction leaves one."""


class Kafka:
    """Topics by name, each a list of partitions."""

    def __init__(self, partitions: int) -> None:
        self.topics: dict[str, list[Log]] = {EVENTS_TOPIC: [[] for _ in range(partitions)]}
        self.topics |= {topic.value: [[]] for topic in CatalogTopic}

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        at: datetime,
        key: bytes | None = None,
        *,
        mark: bytes | None = None,
        first: bytes | None = None,
    ) -> None:
        """One more record, stamped by its broker; a `value` of None leaves a hole. `mark`, `first`: what it says."""
        log = self.topics[topic][partition]
        stamp_ms = microseconds_of(at) // 1_000
        log.append(None if value is None else Record(len(log), stamp_ms, key, value, mark, first))

    def records(self, topic: str) -> dict[tuple[int, int], Record]:
        """All records of a topic by partition and offset."""
        logs = enumerate(self.topics[topic])
        return {(p, record.offset): record for p, log in logs for record in log if record is not None}


def _answered(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Admin:
    """Stands in for the `AdminClient`."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        """Ids and partitions."""
        return outside("kafka", lambda: {name: _answered(self._described(name)) for name in topics.topic_names})

    def _described(self, name: str) -> Any:
        partitions = [SimpleNamespace(id=p, replicas=[1]) for p in range(len(self._kafka.topics[name]))]
        return SimpleNamespace(topic_id=f"id of {name}", partitions=partitions)

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[Any, Future[Any]]:
        """The settings that bills need."""
        return outside("kafka", lambda: {resource: _answered(self._settings(resource.name)) for resource in resources})

    def _settings(self, name: str) -> Mapping[str, Any]:
        policy = "compact" if name in set(CatalogTopic) else "delete"
        values = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": policy, "retention.ms": "-1"}
        return {setting: SimpleNamespace(value=value) for setting, value in values.items()}

    def list_offsets(self, asked: Mapping[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        """First or next offsets."""
        return outside("kafka", lambda: {at: _answered(self._offset(at, spec)) for at, spec in asked.items()})

    def _offset(self, at: TopicPartition, spec: Any) -> Any:
        offset = 0 if spec is EARLIEST else len(self._kafka.topics[at.topic][at.partition])
        return SimpleNamespace(offset=offset)

    def list_topics(self, *_: Any, **__: Any) -> Any:
        """One broker."""
        return SimpleNamespace(brokers=[1])


class Consumer:
    """Stands in for the `Consumer` that reads the catalog's topics."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._at: dict[tuple[str, int], int] = {}

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Begin at these."""
        self._at = {(place.topic, place.partition): place.offset for place in places}

    def incremental_assign(self, places: Iterable[TopicPartition]) -> None:
        """These, too."""
        self._at |= {(place.topic, place.partition): place.offset for place in places}

    def consume(self, **_: Any) -> list[Any]:
        """All that there is."""
        return outside("kafka", self._consumed)

    def _consumed(self) -> list[Any]:
        found = []
        for (topic, partition), at in self._at.items():
            log = self._kafka.topics[topic][partition]
            found += [Message(topic, partition, record) for record in log[at:] if record is not None]
            self._at[topic, partition] = len(log)
        return found

    def position(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Where the next record is read."""
        return [TopicPartition(p.topic, p.partition, self._at[p.topic, p.partition]) for p in places]

    def close(self) -> None:
        """Nothing to give back."""


class Message:
    """A record as the consumer gives it."""

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self._topic, self._partition, self._record = topic, partition, record

    def error(self) -> None:
        """None."""

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._record.offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes:
        return self._record.value

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, self._record.stamp_ms


class Look:
    """Stands in for `RawScan`: the next records of a topic."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic

    def next_records(
        self, positions: Mapping[int, int], most: int, *_: int, only: int | None = None
    ) -> list[LogRecord]:
        """At most `most`, in the order of their stamps."""
        return outside("kafka", lambda: self._next(positions, most, only))

    def _next(self, positions: Mapping[int, int], most: int, only: int | None) -> list[LogRecord]:
        found = []
        for partition, log in enumerate(self._kafka.topics[self._topic]):
            latest_ms = 0
            for record in log[positions.get(partition, 0) :] if only in (None, partition) else ():
                if record is not None:
                    latest_ms = max(latest_ms, record.stamp_ms)
                    size_bytes = len(record.value) + len(record.key or b"")
                    found.append((latest_ms, partition, record, size_bytes))
        found.sort(key=lambda one: (one[0], one[1], one[2].offset))
        return [
            LogRecord(
                *(partition, record.offset, record.stamp_ms, True, size_bytes, record.key, record.value),
                replay_mark=record.mark,
                reception_mark=record.first,
            )
            for _, partition, record, size_bytes in found[:most]
        ]


class FewRecords:
    """Stands in for its namesake."""

    def __init__(self, kafka: Kafka, most: int) -> None:
        self._kafka, self._most = kafka, most

    def read(self, topics: Sequence[Topic], positions: Mapping[str, Mapping[int, int]]) -> pa.Table | None:
        """All of the topics from these positions on, if it is little."""
        return outside("kafka", lambda: self._read(topics, positions))

    def _read(self, topics: Sequence[Topic], positions: Mapping[str, Mapping[int, int]]) -> pa.Table | None:
        logs = {(topic.name, p): self._kafka.topics[topic.name][p] for topic in topics for p in topic.partitions}
        known = {(topic.name, p): at for topic in topics for p, at in positions[topic.name].items()}
        at = {**dict.fromkeys(logs, 0), **known}
        if logs.keys() != at.keys() or sum(len(log) - at[place] for place, log in logs.items()) > self._most:
            return None
        found = [record.row(*place) for place, log in logs.items() for record in log[at[place] :] if record is not None]
        return pa.Table.from_pylist(found, schema=RECORDS)

    def close(self) -> None:
        """Nothing to give back."""


class AbsentOffsets:
    """Stands in for its namesake, which asks a broker by Kafka's protocol."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic

    def prove(self, gaps: Sequence[Gap]) -> dict[int, int]:
        """How many offsets per partition hold no record. Raises Refused for one that does."""
        return outside("kafka", lambda: self._proved(gaps))

    def _proved(self, gaps: Sequence[Gap]) -> dict[int, int]:
        absent: dict[int, int] = {}
        for gap in gaps:
            for offset in range(gap.first, gap.end):
                if self._kafka.topics[self._topic][gap.partition][offset] is not None:
                    raise Refused(f"offset {offset} of partition {gap.partition} holds a record")
            absent[gap.partition] = absent.get(gap.partition, 0) + gap.end - gap.first
        return absent


def beat(kafka: Kafka, topic: str, partition: int, now: datetime) -> None:
    """A heartbeat of ingestion."""
    kafka.append(topic, partition, heartbeat(0, partition, now, "" if topic == EVENTS_TOPIC else topic), now, b"weir")


class Heartbeat:
    """Stands in for its namesake: beats once when it starts; later ones are steps of the history."""

    is_idle = False

    def __init__(self, kafka: Kafka, topics: Sequence[str], now: datetime) -> None:
        self._kafka, self._topics, self._now = kafka, topics, now

    def start(self) -> None:
        """Beat once."""
        for topic in self._topics:
            for partition in range(len(self._kafka.topics[topic])):
                beat(self._kafka, topic, partition, self._now)

    def rest(self) -> None:
        """When it beats is for the history to say."""

    def wake(self) -> None:
        """The same."""

    def close(self) -> None:
        """Nothing beats."""
