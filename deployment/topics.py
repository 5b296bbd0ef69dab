"""The topics that metering needs, on any Kafka: made where they are missing, checked where they are there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves ConfigResource out
    AdminClient,
    ConfigResource,
    NewTopic,
)

from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from deployment.topic_list import TOPICS
from jobs.runtime.kafka.topic_settings import refusals, risks
from jobs.runtime.unreachable import kafka_sentence
from jobs.streams import EVENTS_TOPIC

TIMEOUT_SECONDS = 30.0


class TopicsUnusable(CannotRun):
    """The topics cannot carry metering; the message says what to change."""


def answers(bootstrap: str) -> bool:
    """Whether the broker answers a question about its topics."""
    try:
        AdminClient(_client(bootstrap)).list_topics(timeout=2)
    except KafkaException:
        return False
    return True


def ensure_topics(
    bootstrap: str, event_topics: Sequence[str] = (EVENTS_TOPIC,), *, with_optional: bool = False
) -> None:
    """Make the topics that are missing, and check those that are there. Raises `TopicsUnusable`."""
    topics = _topics(event_topics, with_optional=with_optional)
    admin = AdminClient(_client(bootstrap))
    try:
        present = set(admin.list_topics(timeout=TIMEOUT_SECONDS).topics)
        missing = [topic for topic in topics if topic.topic not in present]
        for made in admin.create_topics(missing).values() if missing else ():
            made.result()
        settings = _settings_when_known(admin, [topic.topic for topic in topics])
    except KafkaException as error:
        if error.args[0].code() < 0:
            # The client's own codes: no broker answered.
            raise TopicsUnusable(kafka_sentence(error, bootstrap)) from error
        raise TopicsUnusable(
            f"Kafka at {bootstrap} refuses to list, create or describe Weir's topics ({error.args[0].str()}): the user "
            "of WEIR_KAFKA_USERNAME needs these rights, or another user has to create the topics."
        ) from error
    if problems := topic_problems(settings):
        raise TopicsUnusable("\n".join(problems))


def _settings_when_known(admin: AdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    """Settings by topic. A topic that was just made is not known at once; the applications must find every one."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            for described in admin.describe_topics(TopicCollection(topics)).values():
                described.result()
            answers = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics])
            return {
                resource.name: {name: entry.value for name, entry in answer.result().items()}
                for resource, answer in answers.items()
            }
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def topic_problems(settings: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A sentence for each topic setting that would make bills wrong. `settings` is by topic, then by Kafka's name."""
    return [sentence for topic, values in settings.items() for sentence in refusals(topic, values)]


def topic_risks(bootstrap: str, event_topics: Sequence[str] = (EVENTS_TOPIC,)) -> list[str]:
    """A sentence for each setting of the topics of events that puts events at risk, by ingestion's defaults."""
    from jobs.ingestion.config import IngestionConfig
    from jobs.runtime.kafka.topic_risks import settings_of

    defaults, admin = IngestionConfig(), AdminClient(_client(bootstrap))
    try:
        settings = {name: settings_of(admin, name) for name in event_topics}
    except KafkaException as error:
        raise TopicsUnusable(
            f"Kafka at {bootstrap} does not show the settings of its topics: {error.args[0].str()}"
        ) from error
    accept_seconds, largest_bytes = defaults.accept_past_seconds, defaults.max_record_bytes
    return [
        f"Topic {name}, {risk}: {sentence}"
        for name, of_topic in settings.items()
        for risk, sentence in risks(of_topic, accept_seconds=accept_seconds, largest_bytes=largest_bytes)
    ]


def _topics(event_topics: Sequence[str], *, with_optional: bool) -> list[NewTopic]:
    # Replication is the broker's own default: 1 on the laptop, and configured on a real cluster.
    return [
        NewTopic(name, num_partitions=topic.partitions, replication_factor=-1, config=dict(topic.settings))
        for topic in TOPICS
        if with_optional or not topic.is_optional
        for name in (event_topics if topic.name == EVENTS_TOPIC else [topic.name])
    ]


def _client(bootstrap: str) -> dict[str, str | int | float | bool]:
    # librdkafka reports each refused connection on standard error while a broker starts; the caller waits anyway.
    return {**kafka_client(bootstrap), "log_level": "0", "socket.connection.setup.timeout.ms": "2000"}
