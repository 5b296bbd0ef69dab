"""Which topic settings would make bills wrong, and which only put them at risk. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from jobs.streams import CatalogTopic
from metering.vocabulary import ORDERED_EVENTS, Published

FOREVER = -1


class TopicRisk(StrEnum):
    """A setting with which records may be lost or not taken; also a metric's label."""

    MAX_MESSAGE_BYTES = "max.message.bytes"
    RETENTION = "retention"
    REPLICATION = "replication"
    MIN_INSYNC = "min.insync.replicas"


@dataclass(frozen=True)
class TopicSettings:
    """What a topic is set to, by Kafka's names; on how many brokers it has copies, of how many that there are."""

    name: str
    values: Mapping[str, str]
    replicas: int
    brokers: int

    def number(self, name: str) -> int | None:
        """A setting that is a number; None where the broker does not say it."""
        value = self.values.get(name)
        return None if value is None else int(value)


def refusals(name: str, values: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each setting of the topic `name` that would make bills wrong, and the command that corrects it.

    For topics that billing publishes: deleted records would make their consumers wrong.
    """
    policy = values.get("cleanup.policy", "delete")
    if name in {*Published, ORDERED_EVENTS}:
        yield from _of_published(name, policy)
        return
    if (stamp := values.get("message.timestamp.type")) != "LogAppendTime":
        yield (
            f"topic {name} has message.timestamp.type={stamp}, so producers say when a record was received; run: "
            f"{alter(name, 'message.timestamp.type=LogAppendTime')}"
        )
    if name in set(CatalogTopic):
        if policy != "compact":
            yield (
                f"topic {name} has cleanup.policy={policy}, so prices and accounts would be forgotten; run: "
                f"{alter(name, 'cleanup.policy=compact')}"
            )
    elif "compact" in policy:
        yield (
            f"topic {name} has cleanup.policy={policy}, so Kafka deletes all events of an account but the last, read "
            f"or not; run: {alter(name, 'cleanup.policy=delete')}"
        )


def _of_published(name: str, policy: str) -> Iterator[str]:
    wanted = "compact" if name == Published.WINDOWS else "delete"
    if policy != wanted:
        yield (
            f"topic {name} has cleanup.policy={policy}, so it deletes records that later consumers need; run: "
            f"{alter(name, f'cleanup.policy={wanted}')}"
        )


def risks(topic: TopicSettings, *, accept_seconds: float, largest_bytes: int) -> Iterator[tuple[TopicRisk, str]]:
    """What is risky about the topic of events: each with what it leads to, and what to do.

    `accept_seconds`: how old an event may be and count; `largest_bytes`: of the largest record that is validated.
    """
    name, needed_ms = topic.name, round(accept_seconds * 1_000)
    if (topic.number("max.message.bytes") or 0) > largest_bytes:
        remedy = alter(name, f"max.message.bytes={largest_bytes}")
        yield TopicRisk.MAX_MESSAGE_BYTES, f"Kafka takes records that ingestion rejects as too large; run: {remedy}"
    retention_ms, retention_bytes = topic.number("retention.ms"), topic.number("retention.bytes")
    if retention_ms is not None and FOREVER != retention_ms < needed_ms:
        remedy = alter(name, f"retention.ms={needed_ms}")
        yield (
            TopicRisk.RETENTION,
            f"Kafka deletes events that are still needed, read or not (retention.ms); run: {remedy}",
        )
    if retention_bytes is not None and retention_bytes != FOREVER:
        remedy = alter(name, "retention.bytes=-1")
        yield TopicRisk.RETENTION, f"Kafka deletes unread events when many arrive (retention.bytes); run: {remedy}"
    if topic.brokers > 1 and topic.replicas == 1:
        remedy = "add replicas with kafka-reassign-partitions.sh"
        yield TopicRisk.REPLICATION, f"each partition is on one broker only, and lost with it; {remedy}"
    elif topic.brokers > 1 and topic.number("min.insync.replicas") == 1:
        remedy = alter(name, "min.insync.replicas=2")
        yield TopicRisk.MIN_INSYNC, f"events that only one broker has acknowledged are lost with it; run: {remedy}"


def alter(topic: str, setting: str) -> str:
    """The command that changes a setting, with Kafka's own tool."""
    return f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic {topic} --add-config {setting}"
