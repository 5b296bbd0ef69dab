"""The heartbeat on the broker that librdkafka brings along, and with the fatal error that it raises on demand."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from jobs.runtime.clock import MachineClock
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.heartbeat import Heartbeat
from monitoring import metrics
from monitoring.instruments import REGISTRY
from tests.clocks import HandClock
from tests.waiting import wait_until

TOPIC = "events"


@pytest.fixture
def bootstrap() -> Iterator[str]:
    owner = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(owner.list_topics(TOPIC, timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    owner.flush(0)


def raise_fatal_error(producer: Producer) -> None:
    """What a broker does that has lost the producer's state."""
    (library,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
    raised = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    raised.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    # The object begins with its reference count and its type; librdkafka's handle follows.
    handle = ctypes.cast(id(producer) + object.__basicsize__, ctypes.POINTER(ctypes.c_void_p))[0]
    assert raised(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"state was lost") == 0


def end_of(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=10)[1])
    finally:
        consumer.close()


def beats_beyond(bootstrap: str, offset: int) -> bool:
    deadline = time.monotonic() + 120
    while (end := end_of(bootstrap)) <= offset and time.monotonic() < deadline:
        time.sleep(0.05)
    return end > offset


def test_beats_go_on_after_an_error_that_ends_the_producer(bootstrap: str) -> None:
    beats = Heartbeat(
        {"bootstrap.servers": bootstrap, "log_level": 0}, [TOPIC], 1, timedelta(seconds=0.05), MachineClock()
    )
    beats.start()
    try:
        assert beats_beyond(bootstrap, 0)
        for _ in range(2):
            before = beats._producer
            raise_fatal_error(before)
            assert beats_beyond(bootstrap, end_of(bootstrap) + 5)
            assert beats._producer is not before
    finally:
        beats.close()


class Pauses(threading.Event):
    """Says how long the pause is that has begun."""

    seconds: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds = timeout
        return super().wait(timeout)


def test_while_idle_heartbeats_are_slow_and_one_is_sent_at_once_on_wake_up(bootstrap: str) -> None:
    settings: KafkaSettings = {"bootstrap.servers": bootstrap, "log_level": 0}
    quick, slow = timedelta(seconds=0.05), timedelta(hours=1)
    beats = Heartbeat(settings, [TOPIC], 1, quick, MachineClock(), idle=slow)
    beats._woken = pauses = Pauses()
    beats.start()
    try:
        assert beats_beyond(bootstrap, 3)
        beats.rest()
        wait_until(lambda: pauses.seconds == slow.total_seconds(), "a slow pause", every_seconds=0.01)
        assert beats._producer.flush(10) == 0
        last = end_of(bootstrap)
        time.sleep(0.5)
        assert end_of(bootstrap) == last
        beats.wake()
        assert beats_beyond(bootstrap, last + 3)
    finally:
        beats.close()
    assert not beats._thread.is_alive()


def test_idle_heartbeats_are_never_faster_than_ordinary_ones(bootstrap: str) -> None:
    settings: KafkaSettings = {"bootstrap.servers": bootstrap, "log_level": 0}
    beats = Heartbeat(settings, [TOPIC], 1, timedelta(hours=1), MachineClock(), idle=timedelta(seconds=0.05))
    beats.rest()
    beats.start()
    try:
        assert beats_beyond(bootstrap, 0)
        time.sleep(0.5)
        assert end_of(bootstrap) == 1
    finally:
        beats.close()


def test_a_producer_that_cannot_be_recreated_is_retried_at_the_next_heartbeat(bootstrap: str, tmp_path: Path) -> None:
    """While a certificate's file is exchanged, say."""
    settings: KafkaSettings = {"bootstrap.servers": bootstrap, "log_level": 0}
    beats = Heartbeat(settings, [TOPIC], 1, timedelta(seconds=60), HandClock())
    raise_fatal_error(beats._producer)
    beats._beat()
    settings |= {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "none.pem")}
    beats._beat()
    assert end_of(bootstrap) == 0
    settings.pop("security.protocol")
    beats._beat()
    assert beats_beyond(bootstrap, 0)


def failed(topic: str = TOPIC) -> float:
    return REGISTRY.get_sample_value(metrics.HEARTBEATS_FAILED.name, {"topic": topic}) or 0.0


def test_beats_that_cannot_even_be_sent_are_counted(bootstrap: str) -> None:
    """Of a topic that it may not see a broker names no partition, and there is nothing to send."""
    nowhere = Heartbeat(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
        *([TOPIC], 1, timedelta(seconds=60), HandClock()),
        timeout_seconds=0.1,
    )
    before = failed()
    nowhere._beat()
    assert failed() == before + 1
    of_unseen = failed("no-such-topic")
    settings: KafkaSettings = {"bootstrap.servers": bootstrap, "log_level": 0, "allow.auto.create.topics": False}
    unseen = Heartbeat(settings, ["no-such-topic"], 1, timedelta(seconds=60), HandClock(), timeout_seconds=5)
    unseen._beat()
    assert (failed(), failed("no-such-topic")) == (before + 1, of_unseen + 1)


def test_a_heartbeat_that_kafka_refuses_is_counted() -> None:
    beats = Heartbeat(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, [TOPIC], 1, timedelta(seconds=60), HandClock()
    )
    before = failed()
    beats._producer.produce(TOPIC, b"", on_delivery=beats._delivered)
    beats._producer.purge(in_flight=False)
    beats._producer.poll(1)
    assert failed() > before
    assert not beats._is_dead


def test_each_topic_gets_beats_and_no_two_are_one_event(bootstrap: str) -> None:
    """Topics that cannot be reached keep no other from being heard of."""
    settings: KafkaSettings = {"bootstrap.servers": bootstrap, "log_level": 0, "allow.auto.create.topics": False}
    Producer(settings | {"allow.auto.create.topics": True}).list_topics("gateway", timeout=10)
    topics = [TOPIC, "no-such-topic", "gateway"]
    beats = Heartbeat(settings, topics, 7, timedelta(seconds=60), HandClock(), timeout_seconds=5)
    before = [failed(topic) for topic in topics]
    beats._beat()
    assert beats._producer.flush(10) == 0
    assert [failed(topic) - count for topic, count in zip(topics, before, strict=True)] == [0, 1, 0]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0) for topic in (TOPIC, "gateway")])
    found: dict[str | None, str] = {}
    while len(found) < 2:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is None:
            found[message.topic()] = json.loads(message.value() or b"")["id"]
    consumer.close()
    assert found.keys() == {TOPIC, "gateway"}
    assert found[TOPIC].startswith("7.0."), "as the one topic of an earlier release"
    assert found["gateway"] == found[TOPIC].replace("7.", "7.gateway.", 1)
