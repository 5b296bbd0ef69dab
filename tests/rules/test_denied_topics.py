"""A broker's denial of a topic is waited out for a while; then it is believed, and says what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from jobs.runtime.errors import NotYet, Refused
from jobs.runtime.kafka.denied_topics import BELIEVED_AFTER_SECONDS, Denials, is_denial
from jobs.runtime.kafka.topic import describe_topic
from metering.vocabulary import Cause
from tests.clocks import HandClock


def denial(code: int = KafkaError.UNKNOWN_TOPIC_OR_PART) -> KafkaException:
    return KafkaException(KafkaError(code))


def test_a_denial_is_waited_for_and_believed_once_it_has_lasted() -> None:
    denials = Denials()
    for now in (100.0, 130.0, 100.0 + BELIEVED_AFTER_SECONDS - 1):
        found = denials.met("events", denial(), now)
        assert isinstance(found, NotYet)
        assert found.cause is Cause.KAFKA
    refused = denials.met("events", denial(), 100.0 + BELIEVED_AFTER_SECONDS)
    assert isinstance(refused, Refused)
    assert "create it, then start again" in str(refused)


def test_a_topic_that_was_found_in_between_is_waited_for_again() -> None:
    denials = Denials()
    denials.met("events", denial(), 0.0)
    denials.interrupted("events")
    assert isinstance(denials.met("events", denial(), BELIEVED_AFTER_SECONDS), NotYet)


def test_an_outage_restarts_the_wait_for_a_denied_topic() -> None:
    denials, clock = Denials(), HandClock()
    denials.met("events", denial(), clock.monotonic())
    clock.go(BELIEVED_AFTER_SECONDS)
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(NotYet):
        describe_topic(admin, "events", denials, clock, timeout_seconds=0.3)
    assert isinstance(denials.met("events", denial(), clock.monotonic()), NotYet)


def test_each_topic_is_checked_by_itself() -> None:
    denials = Denials()
    denials.met("events", denial(), 0.0)
    assert isinstance(denials.met("catalog.prices", denial(), BELIEVED_AFTER_SECONDS), NotYet)


def test_a_missing_permission_is_distinguished_from_a_missing_topic() -> None:
    denials, forbidden = Denials(), denial(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    denials.met("events", forbidden, 0.0)
    assert "DescribeConfigs" in str(denials.met("events", forbidden, BELIEVED_AFTER_SECONDS))


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError.INVALID_CONFIG])
def test_an_error_that_names_no_topic_is_not_a_denial(code: int) -> None:
    assert not is_denial(KafkaError(code))
