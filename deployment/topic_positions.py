"""How far ingestion has read each topic of events, and what Kafka has of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from deployment.asking import asking_kafka
from deployment.kafka_client import kafka_client
from deployment.positions import ANSWER_SECONDS, Positions, beginnings, ends
from jobs.runtime.delta.table import instant_of
from jobs.runtime.errors import NotYet
from jobs.runtime.headroom import limits_of
from jobs.runtime.kafka.topic import Topic, TopicsReader
from jobs.runtime.kafka.topic_risks import settings_of
from jobs.streams import HEARTBEAT_SOURCE, Table
from metering.vocabulary import EventType

MAX_LOOKED_AT = 10_000
"""Unread records that are read to tell heartbeats from events."""


@dataclass(frozen=True)
class TopicPosition:
    """A topic: the next offset of each partition that the journal has read, and how many offsets it has not.

    `frontier`: up to when all of it was received. None: a partition was not heard of yet.
    """

    positions: Mapping[int, int]
    unread: int
    frontier: datetime | None
    retention: timedelta | None


def existing(bootstrap: str, names: Iterable[str]) -> dict[str, Topic]:
    """Those of these topics that Kafka has, with their ids. Raises CannotRun when the broker does not answer."""
    found = {}
    with asking_kafka(bootstrap) as admin:
        answers = admin.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER_SECONDS)
        for name, answer in answers.items():
            try:
                topic = answer.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            found[name] = Topic.of(name, topic)
    return found


def topic_position(bootstrap: str, topic: Topic, positions: Positions) -> TopicPosition:
    """What the journal and Kafka say of a topic now. Raises CannotRun when the broker does not answer."""
    read = {p: positions.transaction(Table.JOURNAL, topic.position(p)) for p in topic.partitions}
    received = [positions.transaction(Table.JOURNAL, topic.received(p)) for p in topic.partitions]
    latest = [instant_of(at) for at in received if at is not None]
    end, first = ends(bootstrap, [topic]), beginnings(bootstrap, [topic])
    unread = 0
    for partition, position in read.items():
        where = topic.position(partition)
        unread += max(0, end.get(where, 0) - (first.get(where, 0) if position is None else position))
    with asking_kafka(bootstrap) as admin:
        retention = limits_of(settings_of(admin, topic.name).values).age
    return TopicPosition(
        {partition: position for partition, position in read.items() if position is not None},
        unread,
        min((at for at in latest if at is not None), default=None) if len(latest) == len(received) else None,
        retention,
    )


def unread_records(bootstrap: str, topic: Topic, position: TopicPosition) -> int:
    """How many unread records of a topic are no heartbeats of ingestion's; what Kafka has deleted unread counts, too.

    Where they are many it does not look at each. Raises CannotRun when the broker does not answer.
    """
    if not 0 < position.unread <= MAX_LOOKED_AT:
        return position.unread
    first = beginnings(bootstrap, [topic])
    starts = {(topic.name, p): max(position.positions.get(p, 0), first[topic.position(p)]) for p in topic.partitions}
    deleted = sum(starts[topic.name, partition] - read for partition, read in position.positions.items())
    with asking_kafka(bootstrap) as admin:
        reader = TopicsReader(kafka_client(bootstrap), admin, [topic], starts)
        try:
            messages, _ = reader.read_to_end()
        except NotYet:
            return position.unread
        finally:
            reader.close()
    return deleted + sum(not _is_heartbeat(message.value()) for message in messages)


def _is_heartbeat(value: bytes | None) -> bool:
    try:
        event = json.loads(value or b"")
    except ValueError:
        return False
    is_object = isinstance(event, dict)
    return is_object and event.get("source") == HEARTBEAT_SOURCE and event.get("type") == EventType.HEARTBEAT
