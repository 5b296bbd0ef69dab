"""Real drivers of sessionization and of ingestion, each run by a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.ingestion.sink import JournalSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.source import TableSource
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.kafka.source import TopicSource
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.runtime.report import Reporter
from jobs.runtime.run import Driver, new_checkpoints
from jobs.runtime.waiting import Waiting
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB
from tests.streaming.journals import environment
from tests.streaming.topics import Topic
from tests.waiting import wait_until

LIMIT_SECONDS = 180


@contextmanager
def running_driver(
    spark: SparkSession, database: str, tables: Path, before_the_stream: Callable[[], None] = lambda: None
) -> Iterator[Callable[[int], None]]:
    """sessionization as a real driver in a thread; gives `wait_for(next_lsn)`, which raises what ended the driver.

    `before_the_stream` is called once, between the first backlog and its stream.
    """
    config = SessionizationConfig(min_batch_interval_seconds=0)
    where, clock = environment(database, tables), MachineClock()
    ownership = Ownership.take(JOB.name, database, {})
    sink = PostgresSink(JOB, Context(config, where, spark, ownership, clock, Denials()))
    source = TableSource(JOB, config, where, sink)
    reporter = Reporter(JOB, database, ownership, Waiting(JOB.name, clock), clock)
    reporter.follow(sink, source)
    stopping = threading.Event()
    driver = Driver(spark, sink, source, reporter, stopping)
    checkpoints = new_checkpoints(where.checkpoints, ownership.epoch)

    def run() -> None:
        driver._catch_up()
        before_the_stream()
        driver._stream(next(checkpoints))
        driver.run(checkpoints)

    with closing(ownership), closing(reporter), _in_a_thread(run, stopping) as fail:

        def wait_for(next_lsn: int) -> None:
            limit = time.monotonic() + LIMIT_SECONDS
            while sink.position() < next_lsn:
                fail()
                assert time.monotonic() < limit, f"still at {sink.position()}"
                time.sleep(0.05)

        yield wait_for


@contextmanager
def running_ingestion(
    spark: SparkSession, database: str, tables: Path, topic: Topic, **settings: Any
) -> Iterator[Callable[[Callable[[], bool], str], None]]:
    """ingestion of this topic as a real driver in a thread.

    Gives `wait_until(condition, what)`, which raises what ended the driver.
    """
    config, clock = IngestionConfig(**{"topic": topic.name, **settings}), MachineClock()
    kafka = KafkaAccess(bootstrap=topic.bootstrap)
    where = environment(database, tables).model_copy(update={"kafka": kafka})
    ownership = Ownership.take(INGESTION.name, database, {})
    context = Context(config, where, spark, ownership, clock, Denials())
    sink = JournalSink(INGESTION, context)
    source = TopicSource(INGESTION, context, sink)
    reporter = Reporter(INGESTION, database, ownership, Waiting(INGESTION.name, clock), clock)
    reporter.follow(sink, source)
    stopping = threading.Event()
    driver = Driver(spark, sink, source, reporter, stopping)

    def run() -> None:
        driver.run(new_checkpoints(where.checkpoints, ownership.epoch))

    with closing(ownership), closing(reporter), closing(sink), closing(source), _in_a_thread(run, stopping) as fail:

        def holds(condition: Callable[[], bool]) -> bool:
            fail()
            return condition()

        yield lambda condition, what: wait_until(lambda: holds(condition), what, LIMIT_SECONDS)


def triggers(monkeypatch: pytest.MonkeyPatch, kind: type[TableSource | TopicSource]) -> list[str]:
    """Of each query that a source of this kind builds from now on, the trigger."""
    built, stream = list[str](), kind.stream

    def watched(source: Any, session: SparkSession) -> Any:
        frame = stream(source, session)
        built.append(source.trigger)
        return frame

    monkeypatch.setattr(kind, "stream", watched)
    return built


@contextmanager
def _in_a_thread(run: Callable[[], None], stopping: threading.Event) -> Iterator[Callable[[], None]]:
    """Gives what raises whatever has ended it."""
    ended: list[BaseException] = []

    def kept() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 -- handed to the thread that waits
            ended.append(error)

    def fail() -> None:
        if ended:
            raise ended[0]

    thread = threading.Thread(target=kept)
    thread.start()
    try:
        yield fail
    finally:
        stopping.set()
        thread.join(60)
