"""Which offsets of which topic the journal covers, by its own transactions."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from cli.journal import Consumed, Partition
from jobs.retention import removed_rows
from jobs.runtime.kafka.topic import Topic

_KAFKA_TIMEOUT_SECONDS = 15


def consumed_ranges(journal: DeltaTable, topics: Iterable[Topic]) -> dict[Partition, Consumed]:
    """What the journal's transactions say of each partition of `topics`; those never read from are left out."""
    ranges = {}
    for topic in topics:
        for partition in topic.partitions:
            first = journal.transaction_version(topic.first(partition))
            following = journal.transaction_version(topic.position(partition))
            absent = journal.transaction_version(topic.absent(partition))
            if first is not None and following is not None:
                removed = journal.transaction_version(removed_rows(topic.name, partition))
                ranges[topic.name, partition] = Consumed(first, following, absent or 0, removed or 0)
    return ranges


def kafka_topics(admin: AdminClient, names: set[str]) -> list[Topic]:
    """Those of the topics `names` that exist, with their ids. Raises KafkaException when no broker answers."""
    existing = admin.list_topics(timeout=_KAFKA_TIMEOUT_SECONDS).topics
    wanted = sorted(names & existing.keys())
    if not wanted:
        return []
    answers = admin.describe_topics(TopicCollection(wanted), request_timeout=_KAFKA_TIMEOUT_SECONDS)
    described = {name: answer.result() for name, answer in answers.items()}
    return [
        Topic(name, str(topic.topic_id), tuple(sorted(partition.id for partition in topic.partitions)))
        for name, topic in described.items()
    ]
