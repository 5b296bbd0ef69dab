"""Which broker leads a partition: raw reads of a log go to that broker."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from jobs.runtime.kafka.denied_topics import denied, is_denial
from jobs.runtime.kafka.topic import TIMEOUT_SECONDS


def leaders(admin: AdminClient, topic: str, partitions: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Host and port of the broker that leads each of these partitions of a topic that is being read.

    Raises NotYet when the topic is denied, KafkaException when a partition has no leader.
    """
    try:
        described = admin.describe_topics(TopicCollection([str(topic)]), request_timeout=TIMEOUT_SECONDS)[
            topic
        ].result()
    except KafkaException as error:
        raise denied(topic, error) if is_denial(error.args[0]) else error from error
    found = {partition.id: partition.leader for partition in described.partitions}
    if without := [str(partition) for partition in partitions if found.get(partition) is None]:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"no leader of {', '.join(without)}"))
    return {partition: (found[partition].host, found[partition].port) for partition in partitions}
