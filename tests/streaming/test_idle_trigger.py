"""While little comes ingestion's driver reads it, and when much comes Spark does; nothing is lost between."""

from __future__ import annotations

from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.runtime.kafka.driver_records import DriverRecords, TopicLimits
from jobs.runtime.kafka.look_interval import LookInterval
from jobs.runtime.kafka.source import TopicSource, _are_heartbeats
from jobs.streams import Table
from metering.vocabulary import EventType
from tests.streaming.drivers import running_ingestion, triggers
from tests.streaming.test_driver_rows import jobs_of
from tests.streaming.topics import Topic, journal

SOON = {"trigger_interval_seconds": 0.5, "heartbeat_interval_seconds": 1}


def ids(tables: Path) -> list[str]:
    """Of all events that the journal holds, in its order."""
    if not DeltaTable.is_deltatable(f"{tables}/{Table.JOURNAL}"):
        return []
    return [name for name in journal(tables)["id"] if name.isdigit()]


def test_small_batches_start_no_spark_job_from_the_first_record_on(
    spark: SparkSession, database: str, broker: str, tmp_path: Path
) -> None:
    topic, before = Topic.make(broker, partitions=2), jobs_of(spark)
    topic.append("0")
    with running_ingestion(spark, database, tmp_path, topic, **SOON) as wait_until:
        for number in range(1, 5):
            wait_until(lambda: len(ids(tmp_path)) == number, f"{number} records")  # noqa: B023 -- waited for
            topic.append(str(number), partition=number % 2)
        wait_until(lambda: len(ids(tmp_path)) == 5, "all records")
        assert jobs_of(spark) == before


def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each look from now on: in which round of the driver it was, and whether it found events. None costs CPU."""
    found, plan_next, after = TopicSource.found, TopicSource._plan_next_look, LookInterval.after
    rounds, seen = count(1), list[tuple[int, bool]]()
    current = 0

    def counted(source: TopicSource) -> pa.Table | None:
        nonlocal current
        current = next(rounds)
        return found(source)

    def noted(source: TopicSource, records: pa.Table | None) -> None:
        seen.append((current, records is not None and not _are_heartbeats(records)))
        plan_next(source, records)

    monkeypatch.setattr(TopicSource, "found", counted)
    monkeypatch.setattr(TopicSource, "_plan_next_look", noted)
    # What a batch costs on a busy machine would put the next look off; test_look_interval has that.
    monkeypatch.setattr(LookInterval, "after", lambda self, _, *, has_events: after(self, 0, has_events=has_events))
    return seen


@pytest.mark.long
def test_while_events_come_the_next_look_is_the_drivers_next_round(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after a quiet look it is as many rounds (of a second) away as usual."""
    topic, seldom = Topic.make(broker), {"trigger_interval_seconds": 4, "heartbeat_interval_seconds": 60}
    monkeypatch.setattr(TopicSource, "just_started_seconds", 0.0)
    seen = looks(monkeypatch)
    with running_ingestion(spark, database, tmp_path, topic, **seldom) as wait_until:
        for number in range(4):
            # Heartbeats, which other tests here send, bring no look forward.
            event = topic.event(str(number)).replace(EventType.HEARTBEAT.value.encode(), b"com.example.other")
            topic.producer.produce(topic.name, event, b"a")
            topic.producer.flush(30)
            wait_until(lambda: len(ids(tmp_path)) == number + 1, f"{number} records")  # noqa: B023 -- waited for
        wait_until(lambda: sum(not has_events for _, has_events in seen) >= 3, "three quiet looks")
    gaps = {(has_events, later - at) for (at, has_events), (later, _) in pairwise(seen)}
    assert gaps == {(True, 1), (False, 4)}


def test_after_its_start_the_driver_looks_as_soon_as_while_events_come(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, seldom = Topic.make(broker), {"trigger_interval_seconds": 60, "heartbeat_interval_seconds": 60}
    seen = looks(monkeypatch)
    with running_ingestion(spark, database, tmp_path, topic, **seldom) as wait_until:
        wait_until(lambda: len(seen) >= 3, "three looks that found no event")
    assert {(has_events, later - at) for (at, has_events), (later, _) in pairwise(seen)} == {(False, 1)}


@pytest.mark.long
def test_the_query_of_a_long_idle_ingestion_begins_at_its_position(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own place would stay behind, and be lost with what the brokers remove."""
    monkeypatch.setattr(TopicSource, "seldom_seconds", 2.0)
    built, topic, sent = triggers(monkeypatch, TopicSource), Topic.make(broker, partitions=2), 0
    with running_ingestion(spark, database, tmp_path, topic, **SOON) as wait_until:
        while len(built) < 4:
            topic.append(str(sent), partition=sent % 2)
            sent += 1
            wait_until(lambda: len(ids(tmp_path)) == sent, "all records")  # noqa: B023
    assert set(built) == {"2 seconds"}
    assert sorted(map(int, ids(tmp_path))) == list(range(sent))


@pytest.mark.long
def test_an_idle_ingestion_leaves_large_batches_to_spark_and_is_idle_again(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicSource, "rest_after_seconds", 4.0)
    monkeypatch.setattr("jobs.runtime.kafka.source.DriverRecords", partial(DriverRecords, few=TopicLimits(offsets=20)))
    built, topic, sent = triggers(monkeypatch, TopicSource), Topic.make(broker, partitions=2), 0
    with running_ingestion(spark, database, tmp_path, topic, **SOON) as wait_until:
        for _ in range(2):
            wait_until(lambda: built[-1:] == ["1800 seconds"], "a query that rests")
            jobs = len(jobs_of(spark))
            for _ in range(200):
                # Together more than a driver reads, though a look had begun when they were fewer.
                topic.producer.produce(topic.name, topic.event(str(sent)), b"a" * 8_000, partition=sent % 2)
                sent += 1
            topic.producer.flush(30)
            wait_until(lambda: len(ids(tmp_path)) == sent, "all records")  # noqa: B023
            assert len(jobs_of(spark)) > jobs
    assert sorted(map(int, ids(tmp_path))) == list(range(sent))
