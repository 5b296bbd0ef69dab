"""Plain Kafka: topics, their ends, and reading a topic to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from jobs.runtime.errors import NotYet, Refused
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.denied_topics import Denials, denied, is_denial
from jobs.runtime.kafka.topic_settings import alter, refusals
from jobs.runtime.transient_errors import transient_error_of
from metering.instants import Clock
from metering.vocabulary import Cause

TIMEOUT_SECONDS = 15.0
"""What the broker does not answer within this it does not answer."""
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
COMMITTED: KafkaSettings = {
    "group.id": "weir",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    # As Java's client does by default: else a price would be what a disk made of it.
    "check.crcs": True,
    "auto.offset.reset": "error",
}
"""Settings of a consumer with assigned partitions: committed records, without a group."""
Positions = Mapping[tuple[str, int], int]
"""Next offset per topic and partition."""


@dataclass(frozen=True)
class Topic:
    """A topic as the broker knows it. Its id changes when it is deleted and made again."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]

    @classmethod
    def of(cls, name: str, described: TopicDescription) -> Topic:
        """As the broker has described it."""
        return cls(name, str(described.topic_id), tuple(sorted(partition.id for partition in described.partitions)))

    def position(self, partition: int) -> str:
        """The transaction that holds the next offset to read."""
        return f"kafka:{self.topic_id}:{partition}"

    def first(self, partition: int) -> str:
        """The transaction that holds the first offset ever read."""
        return f"first:{self.topic_id}:{partition}"

    def absent(self, partition: int) -> str:
        """The transaction that counts the offsets below the position that held no record."""
        return f"absent:{self.topic_id}:{partition}"

    def lost(self, partition: int) -> str:
        """The transaction that counts the offsets below the position whose loss an operator has accepted."""
        return f"lost:{self.topic_id}:{partition}"

    def received(self, partition: int) -> str:
        """The transaction that holds the latest time of receipt, in microseconds since 1970."""
        return f"received:{self.topic_id}:{partition}"


def describe_topic(
    admin: AdminClient, name: str, denials: Denials, clock: Clock, timeout_seconds: float = TIMEOUT_SECONDS
) -> Topic:
    """The topic's id and partitions, at a start; a broker's denial is kept in `denials`.

    Raises Refused when it does not exist for a while or its settings would make bills wrong, NotYet when no broker
    answers, or one that may have just started.
    """
    try:
        described = admin.describe_topics(TopicCollection([name]), request_timeout=timeout_seconds)[name].result()
        settings = _settings(admin, name, timeout_seconds)
    except KafkaException as error:
        if transient_error := transient_error_of(error):
            denials.interrupted(name)
            raise transient_error from error
        if is_denial(error.args[0]):
            raise denials.met(name, error, clock.monotonic()) from error
        raise Refused(f"topic {name} cannot be read: {error.args[0].str()}; correct that, then start again") from error
    denials.interrupted(name)
    _refuse_settings(name, settings)
    return Topic.of(name, described)


def describe_read_topic(admin: AdminClient, name: str) -> Topic:
    """The same, of a topic that is being read: raises NotYet when it is denied, so that a start finds out why."""
    (topic,) = list_partitions(admin, [name])
    try:
        settings = _settings(admin, name)
    except KafkaException as error:
        raise denied(name, error) if is_denial(error.args[0]) else error from error
    _refuse_settings(name, settings)
    return topic


def _settings(admin: AdminClient, name: str, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, str(name))  # the library refuses a StrEnum
    settings = admin.describe_configs([resource], request_timeout=timeout_seconds)[resource].result()
    return {setting: entry.value for setting, entry in settings.items() if entry.value is not None}


def _refuse_settings(name: str, settings: Mapping[str, str]) -> None:
    if problem := next(refusals(name, settings), None):
        raise Refused(problem)


def list_partitions(admin: AdminClient, names: Sequence[str]) -> list[Topic]:
    """The topics' ids and partitions as they are now, by one request.

    Raises NotYet for a topic that is denied: the next start finds out whether it was deleted.
    """
    described = admin.describe_topics(TopicCollection(list(map(str, names))), request_timeout=TIMEOUT_SECONDS)
    topics = []
    for name in names:
        try:
            topic = described[name].result()
        except KafkaException as error:
            raise denied(name, error) if is_denial(error.args[0]) else error from error
        topics.append(Topic.of(name, topic))
    return topics


def offsets(
    admin: AdminClient, topic: Topic, at: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> dict[int, int]:
    """The earliest or latest offset per partition. Raises NotYet when the topic is denied, else KafkaException."""
    specs = {TopicPartition(topic.name, partition): at for partition in topic.partitions}
    answers = admin.list_offsets(specs, isolation_level=isolation, request_timeout=TIMEOUT_SECONDS)
    try:
        return {asked_for.partition: answer.result().offset for asked_for, answer in answers.items()}
    except KafkaException as error:
        raise denied(topic.name, error) if is_denial(error.args[0]) else error from error


def refuse_lost_records(admin: AdminClient, topic: Topic, positions: Mapping[int, int]) -> None:
    """Refuse when retention took records that were not read yet, or the topic ends before the position."""
    earliest = offsets(admin, topic, EARLIEST)
    latest = offsets(admin, topic, LATEST)
    for partition, position in positions.items():
        if partition not in earliest:
            raise Refused(f"topic {topic.name} has lost partition {partition}; restore the topic")
        if earliest[partition] > position:
            raise Refused(
                f"{topic.name}[{partition}]: records {position} to {earliest[partition] - 1} were deleted by retention "
                "before they were read; restore them, or accept that they are on no bill: `weir journal accept-loss "
                f"{topic.name} {partition} --reason TEXT`; and give the topic a longer retention: "
                f"{alter(topic.name, 'retention.ms=MILLISECONDS')}"
            )
        if latest[partition] < position:
            raise Refused(
                f"{topic.name}[{partition}] ends at {latest[partition]}, the journal is at {position}: this is not the "
                "topic that was read before, or it lost records; restore the topic"
            )


class TopicsReader:
    """Reads topics from given positions to their ends, only committed records, without a consumer group."""

    def __init__(self, kafka: KafkaSettings, admin: AdminClient, topics: Sequence[Topic], positions: Positions) -> None:
        self._admin = admin
        self._positions = dict(positions)
        self._consumer = Consumer({**kafka, **COMMITTED})
        self._consumer.assign(
            [TopicPartition(t.name, p, self._positions[t.name, p]) for t in topics for p in t.partitions]
        )

    def add(self, positions: Positions) -> None:
        """Read these partitions too, from these offsets on."""
        self._positions |= positions
        self._consumer.incremental_assign([TopicPartition(*at, offset) for at, offset in positions.items()])

    def has_news(self) -> bool:
        """Whether a partition has more than what was read, as far as the brokers have reported."""
        for (name, partition), position in self._positions.items():
            _, end = self._consumer.get_watermark_offsets(TopicPartition(name, partition), cached=True)
            if end > position:
                return True
        return False

    def read_to_end(self) -> tuple[list[Message], Positions]:
        """All records up to the ends that the topics have now, and the next offset per topic and partition."""
        specs = {TopicPartition(name, partition): LATEST for name, partition in self._positions}
        answers = self._admin.list_offsets(
            specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
        )
        ends = {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
        messages: list[Message] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while any(self._positions[at] < end for at, end in ends.items()):
            for message in self._consumer.consume(num_messages=10_000, timeout=0.2):
                if message.error():
                    raise KafkaException(message.error())
                messages.append(message)
                deadline = time.monotonic() + TIMEOUT_SECONDS
            for at in self._consumer.position([TopicPartition(*at) for at in ends]):
                if at.offset >= 0:
                    self._positions[at.topic, at.partition] = at.offset
            if time.monotonic() > deadline:
                raise NotYet(Cause.KAFKA, f"the catalog's next records did not come within {TIMEOUT_SECONDS:g} s")
        return messages, dict(self._positions)

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


def stamp(message: Message) -> tuple[datetime, bool]:
    """When a broker appended a record, and whether it did: a producer's timestamp is not used (1970)."""
    kind, milliseconds = message.timestamp()
    is_broker_stamp = kind == TIMESTAMP_LOG_APPEND_TIME
    elapsed = timedelta(milliseconds=milliseconds if is_broker_stamp else 0)
    return datetime(1970, 1, 1, tzinfo=UTC) + elapsed, is_broker_stamp
