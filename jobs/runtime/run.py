"""How a job runs: the only place that knows. Checks, epoch, memory, catching up, then one streaming query."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.runtime.config import Environment, JobConfig
from jobs.runtime.database import schema_is_current
from jobs.runtime.delta import committed_epoch
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.job import AnyJob, Context, PostgresJob, Sink, TopicJob
from jobs.runtime.object_store import spark_settings
from jobs.runtime.ownership import Ownership
from jobs.runtime.postgres_sink import PostgresSink
from jobs.runtime.report import Reporter
from jobs.runtime.source import Source, TableSource, TopicSource
from jobs.runtime.spark import spark_session

log = structlog.get_logger()

TICK_SECONDS = 1
"""How often a driver looks around: for a signal, for the time, for its lag."""
STOP_LIMIT_SECONDS = 20.0
"""How long it may take to end in order: well within what supervisors and Kubernetes wait before they kill."""


def run(job: AnyJob, config: JobConfig, environment: Environment) -> None:
    """Run `job` until SIGTERM or SIGINT. Raises Refused, Fenced, or whatever broke."""
    stopping = threading.Event()
    stop_on_signals(stopping)
    if not schema_is_current(environment.postgres_url):
        raise Refused("the database does not have this version's schema; run: python -m jobs migrate")
    spark = spark_session(
        f"weir-{job.name}",
        environment.jars,
        master=None if environment.submitted else "local[1]",
        memory_mib=config.driver_memory_mib,
        conf=spark_settings(environment.tables, os.environ),
    )
    with ExitStack() as held:
        held.callback(spark.stop)
        at_least = 1 if isinstance(job, PostgresJob) else committed_epoch(environment.tables, job.writes, job.name) + 1
        ownership = Ownership.take(job.name, environment.postgres_url, config.model_dump(mode="json"), at_least)
        held.callback(ownership.close)
        context = Context(config, environment, spark, ownership)
        sink: Any = PostgresSink(job, context) if isinstance(job, PostgresJob) else job.start(context)
        held.callback(sink.close)
        source: Source = (
            TopicSource(job, config, environment, sink)
            if isinstance(job, TopicJob)
            else TableSource(job, config, environment, sink)
        )
        reporter = Reporter(job.name, environment.postgres_url, ownership, sink, source)
        held.callback(reporter.close)
        checkpoint = new_checkpoint(environment.checkpoints / job.name, ownership.epoch)
        Driver(spark, sink, source, reporter, stopping).run(checkpoint)


def stop_on_signals(stopping: threading.Event, limit_seconds: float = STOP_LIMIT_SECONDS) -> None:
    """Set `stopping` at SIGTERM or SIGINT; a process that has not ended by itself after the limit is ended.

    It may wait for a broker or a database that went before it; what is not committed is done again by its successor.
    """

    def stop(*_: object) -> None:
        stopping.set()
        last_resort = threading.Timer(limit_seconds, os._exit, [ExitStatus.STOPPED])
        last_resort.daemon = True
        last_resort.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def new_checkpoint(folder: Path, epoch: int) -> Path:
    """A new, empty folder. Spark's checkpoint is scratch: the sink's own position says where a start continues."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder / str(epoch)


class Driver:
    """One streaming query and what surrounds it."""

    def __init__(
        self, spark: SparkSession, sink: Sink, source: Source, reporter: Reporter, stopping: threading.Event
    ) -> None:
        self._spark = spark
        self._sink = sink
        self._source = source
        self._reporter = reporter
        self._stopping = stopping
        self._turn = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, checkpoint: Path) -> None:
        """Catch up, then stream; between batches let time pass and report."""
        while not self._source.exists() and not self._stopping.wait(TICK_SECONDS):
            self._reporter.report_if_due("waiting")
        for number in itertools.count():
            if not self._stopping.is_set():
                self._catch_up()
            if self._stopping.is_set():
                break
            self._stream(checkpoint / str(number))
        self._reporter.report("stopped")

    def _catch_up(self) -> None:
        for batch in self._source.backlog(self._spark):
            if self._stopping.is_set():
                return
            self._process(batch)
            self._reporter.report_if_due("catching_up")

    def _process(self, batch: DataFrame) -> None:
        with self._turn:
            started = time.monotonic()
            progress = self._sink.process(batch)
            self._reporter.batch(progress, time.monotonic() - started)

    def _on_batch(self, batch: DataFrame, _: int) -> None:
        try:
            # A commit without rows, which only moves a frontier, is a batch too: it costs no Spark job here.
            if not self._stopping.is_set() and self._source.has_news():
                self._process(batch)
        except BaseException as error:
            # Spark would hand back only the text of the error, not the error.
            self._failure = error
            raise

    def _stream(self, checkpoint: Path) -> None:
        query: StreamingQuery = (
            self._source.stream(self._spark)
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=self._source.trigger)
            .start()
        )
        try:
            while not self._stopping.is_set() and not self._source.must_restart():
                if query.awaitTermination(TICK_SECONDS):
                    break
                self._tick()
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            if not self._source.can_go_on():
                raise
            log.info("the input changed: the query is built anew")
        finally:
            with self._turn:
                query.stop()

    def _tick(self) -> None:
        if self._turn.acquire(blocking=False):
            try:
                self._source.advance()
            finally:
                self._turn.release()
        self._reporter.report_if_due("running")
