"""A real driver of sessionization, run by a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.source import TableSource
from jobs.runtime.job import Context
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.runtime.report import Reporter
from jobs.runtime.run import Driver, new_checkpoints
from jobs.runtime.waiting import Waiting
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB
from tests.streaming.journals import environment


@contextmanager
def running_driver(
    spark: SparkSession, database: str, tables: Path, before_the_stream: Callable[[], None] = lambda: None
) -> Iterator[Callable[[int], None]]:
    """sessionization as a real driver in a thread; gives `wait_for(next_lsn)`, which raises what ended the driver.

    `before_the_stream` is called once, between the first backlog and its stream.
    """
    config, where, stopping = SessionizationConfig(), environment(database, tables), threading.Event()
    clock = MachineClock()
    ownership = Ownership.take(JOB.name, database, {})
    sink = PostgresSink(JOB, Context(config, where, spark, ownership, clock))
    source = TableSource(JOB, config, where, sink)
    reporter = Reporter(JOB, database, ownership, Waiting(JOB.name, clock), clock)
    reporter.follow(sink, source)
    driver = Driver(spark, sink, source, reporter, stopping)
    checkpoints = new_checkpoints(where.checkpoints, ownership.epoch)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            driver._catch_up()
            before_the_stream()
            driver._stream(next(checkpoints))
            driver.run(checkpoints)
        except Exception as error:  # noqa: BLE001 -- handed to the thread that waits
            ended.append(error)

    def wait_for(next_lsn: int) -> None:
        limit = time.monotonic() + 90
        while sink.position() < next_lsn:
            if ended:
                raise ended[0]
            assert time.monotonic() < limit, f"still at {sink.position()}"
            time.sleep(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield wait_for
    finally:
        stopping.set()
        thread.join(60)
        reporter.close()
        ownership.close()
