"""Risks of the topics of events, checked at each start: a log line and a metric for each."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from jobs.runtime.kafka.topic import TIMEOUT_SECONDS
from jobs.runtime.kafka.topic_settings import TopicRisk, TopicSettings, risks
from monitoring import metrics

log = structlog.get_logger()


def settings_of(admin: AdminClient, topic: str) -> TopicSettings:
    """How a topic is set, and spread over brokers. Raises KafkaException."""
    resource = ConfigResource(ResourceType.TOPIC, str(topic))
    entries = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    described = admin.describe_topics(TopicCollection([str(topic)]), request_timeout=TIMEOUT_SECONDS)
    partitions = described[str(topic)].result().partitions
    brokers = len(admin.list_topics(str(topic), timeout=TIMEOUT_SECONDS).brokers)
    values = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    return TopicSettings(topic, values, min(len(partition.replicas) for partition in partitions), brokers)


def report_topic_risks(topics: Iterable[TopicSettings], *, accept_seconds: float, largest_bytes: int) -> None:
    """Log and show what `risks` finds of any of these topics."""
    for settings in topics:
        found = dict(risks(settings, accept_seconds=accept_seconds, largest_bytes=largest_bytes))
        for risk, sentence in found.items():
            log.warning("the topic is at risk", topic=settings.name, setting=risk.value, because=sentence)
        for risk in TopicRisk:
            metrics.TOPIC_AT_RISK.set(float(risk in found), topic=settings.name, setting=risk.value)
