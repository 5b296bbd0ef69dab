"""While ingestion's heart rests, what comes is taken up as soon as ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from jobs.streams import CatalogTopic
from monitoring import metrics
from tests.streaming.brokers import running_broker
from tests.streaming.topics import Topic, batch, every_row, ingestion
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.mark.long
def test_a_change_of_the_catalog_ends_slow_heartbeats_and_arrives_with_the_next(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
        sink._heartbeat.rest()
        before = batch(spark, topic).count()
        sink.advance()
        assert sink.gauges()[metrics.IDLE] == 1
        producer = Producer({"bootstrap.servers": broker})
        producer.produce(CatalogTopic.PLANS, b"{}", b"k")
        producer.flush(30)

        def wakes() -> bool:
            sink.advance()
            return sink.gauges()[metrics.IDLE] == 0

        wait_until(wakes, "the heart to wake")
        wait_until(lambda: batch(spark, topic).count() > before, "a beat")
        sink.process(batch(spark, topic))
        assert CatalogTopic.PLANS in set(every_row(tmp_path)["topic"])
        # What it has read is no news.
        sink._heartbeat.rest()
        sink.advance()
        assert sink.gauges()[metrics.IDLE] == 1


@pytest.mark.long
def test_an_event_ends_slow_heartbeats(spark: SparkSession, broker: str, database: str, tmp_path: Path) -> None:
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
        sink._heartbeat.rest()
        known = batch(spark, topic).count()
        topic.producer.produce(topic.name, b"neither an event nor a heartbeat", partition=0)
        topic.producer.flush(30)
        sink.process(batch(spark, topic))
        assert not sink._heartbeat.is_idle
        wait_until(lambda: batch(spark, topic).count() > known + 1, "a beat at once")
