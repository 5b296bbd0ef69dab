"""Settings of a topic, each at its edge: what would make bills wrong refuses, what only risks them is said."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.runtime.kafka.topic_settings import TopicRisk, TopicSettings, refusals, risks
from jobs.streams import EVENTS_TOPIC, CatalogTopic
from metering.vocabulary import Published

DAY_MS = 86_400_000
GOOD = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "max.message.bytes": "262144",
    "retention.ms": str(36 * DAY_MS),
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
}


def found(replicas: int = 3, brokers: int = 3, **changed: str) -> list[TopicRisk]:
    values = {**GOOD, **{name.replace("_", "."): value for name, value in changed.items()}}
    topic = TopicSettings(EVENTS_TOPIC, values, replicas, brokers)
    return [risk for risk, _ in risks(topic, accept_seconds=35 * 86_400, largest_bytes=1 << 20)]


def test_good_settings_are_neither_refused_nor_doubted() -> None:
    assert list(refusals(EVENTS_TOPIC, GOOD)) == []
    assert found() == []


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_events_that_kafka_would_compact_are_refused_with_the_command_that_corrects_it(policy: str) -> None:
    (sentence,) = refusals(EVENTS_TOPIC, {**GOOD, "cleanup.policy": policy})
    assert f"cleanup.policy={policy}" in sentence
    assert sentence.endswith("--topic events --add-config cleanup.policy=delete")


@pytest.mark.parametrize("name", [EVENTS_TOPIC, *CatalogTopic])
def test_producer_time_is_refused_on_every_topic(name: str) -> None:
    policy = {} if name == EVENTS_TOPIC else {"cleanup.policy": "compact"}
    (sentence,) = refusals(name, {**GOOD, **policy, "message.timestamp.type": "CreateTime"})
    assert sentence.endswith(f"--topic {name} --add-config message.timestamp.type=LogAppendTime")


def test_a_catalog_topic_that_forgets_is_refused() -> None:
    (sentence,) = refusals(CatalogTopic.PRICES, GOOD)
    assert "catalog.prices has cleanup.policy=delete" in sentence


@pytest.mark.parametrize(
    ("topic", "good", "bad"), [(Published.WINDOWS, "compact", "delete"), (Published.CORRECTIONS, "delete", "compact")]
)
def test_published_topics_with_retention_are_refused_with_either_timestamp(
    topic: Published, good: str, bad: str
) -> None:
    stamped = {"message.timestamp.type": "CreateTime"}
    assert list(refusals(topic, {**stamped, "cleanup.policy": good})) == []
    for policy in (bad, "compact,delete"):
        (sentence,) = refusals(topic, {**stamped, "cleanup.policy": policy})
        assert sentence.endswith(f"--topic {topic} --add-config cleanup.policy={good}")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"max_message_bytes": str(1 << 20)}, []),
        ({"max_message_bytes": str((1 << 20) + 1)}, [TopicRisk.MAX_MESSAGE_BYTES]),
        ({"retention_ms": str(35 * DAY_MS)}, []),
        ({"retention_ms": str(35 * DAY_MS - 1)}, [TopicRisk.RETENTION]),
        ({"retention_ms": "-1"}, []),
        ({"retention_bytes": "1000000"}, [TopicRisk.RETENTION]),
        ({"replicas": 1}, [TopicRisk.REPLICATION]),
        ({"replicas": 1, "brokers": 1, "min_insync_replicas": "1"}, []),
        ({"min_insync_replicas": "1"}, [TopicRisk.MIN_INSYNC]),
    ],
)
def test_a_setting_that_puts_events_at_risk_is_reported(changed: dict[str, Any], expected: list[TopicRisk]) -> None:
    assert found(**changed) == expected
