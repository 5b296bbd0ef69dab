"""How a job runs, and only here: checks, epoch, state, catching up, then one streaming query."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.runtime.clock_skew import refuse_clock_skew
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.log_cleanup import LogCleanup
from jobs.runtime.delta.object_store import spark_settings
from jobs.runtime.delta.source import TableSource
from jobs.runtime.delta.table import committed_epoch
from jobs.runtime.environment import Environment
from jobs.runtime.errors import ExitStatus
from jobs.runtime.job import AnyJob, Batch, Context, PostgresJob, Sink, TopicJob
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.kafka.source import TopicSource
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.rules_backup import read_backup
from jobs.runtime.postgres.schema_check import refuse_other_schema
from jobs.runtime.postgres.sink import PostgresSink
from jobs.runtime.query import Query
from jobs.runtime.report import Reporter, went_round
from jobs.runtime.source import Source
from jobs.runtime.spark import java_runs, spark_session
from jobs.runtime.transient_errors import transient_error_of
from jobs.runtime.waiting import Waiting, until_done
from metering.instants import Clock
from metering.reports import Phase
from monitoring.liveness import LOOP, ROUND_SECONDS, START_SECONDS

log = structlog.get_logger()

TICK_SECONDS = 1.0
"""How often a driver looks whether its input is there, at least."""
FIRST_TICK_SECONDS = 0.1
"""The first time: all applications of a new installation start together. Each time after that it waits a tenth longer.
"""
LET_IN_SECONDS = 0.05
"""How often a driver that starts beside its servers looks whether it may use them."""
TURN_SECONDS = 0.1
"""How often a waiting batch checks whether its query is over."""
STOP_LIMIT_SECONDS = 20.0
"""How long it may take to end in order: well within what supervisors and Kubernetes wait before they kill."""


def run(job: AnyJob, config: JobConfig, environment: Environment, clock: Clock) -> None:
    """Run `job` until SIGTERM or SIGINT. Raises Refused, Fenced, or the error that ended it."""
    stopping = threading.Event()
    stop_on_signals(stopping)
    LOOP.expect_round_within(START_SECONDS)
    waiting = Waiting(job.name, clock)
    spark = spark_session(
        f"weir-{job.name}",
        environment.jars,
        master=None if environment.submitted else "local[1]",
        memory_mib=config.driver_memory_mib,
        conf=spark_settings(environment.tables, os.environ),
    )
    with ExitStack() as held:
        held.callback(spark.stop)
        if not until_there(environment.starts_after, stopping):
            return
        owned = until_done(
            lambda: _own(job, config, environment, clock),
            waiting,
            stopping,
            lambda: went_round(job.name, clock.now()),
        )
        if owned is None:
            return
        ownership, config = owned
        held.callback(ownership.close)
        reporter = Reporter(job, environment.postgres_url, ownership, waiting, clock)
        held.callback(reporter.close)
        if not isinstance(job, PostgresJob):
            held.callback(LogCleanup(environment.tables, job.writes).close)
        checkpoints = new_checkpoints(environment.checkpoints / job.name, ownership.epoch)
        context = Context(config, environment, spark, ownership, clock, Denials())
        until_done(
            lambda: _drive(job, context, reporter, stopping, checkpoints),
            waiting,
            stopping,
            reporter.report_waiting,
        )
        reporter.report_stopped()


def until_there(file: Path | None, stopping: threading.Event) -> bool:
    """Wait for a file, if there is one to wait for. False when asked to stop before it was there."""
    while file is not None and not file.exists():
        LOOP.expect_round_within(ROUND_SECONDS)
        if stopping.wait(LET_IN_SECONDS):
            return False
    return True


def _own(job: AnyJob, config: JobConfig, environment: Environment, clock: Clock) -> tuple[Ownership, JobConfig]:
    """Take the job, and settle what its configuration leaves open, so that the database has the effective settings.

    Raises Refused when database or table has another schema, or the database another time, and what `settle` raises.
    An attempt is no report: a driver that is refused at each start must be seen to be down.
    """
    LOOP.expect_round_within(ROUND_SECONDS)
    refuse_other_schema(environment.postgres_url)
    refuse_clock_skew(environment.postgres_url, clock)
    at_least = 1 + max(_known_epochs(job, environment.tables), default=0)
    if not isinstance(job, PostgresJob):
        config = job.settle(config, environment)
    ownership = Ownership.take(job.name, environment.postgres_url, config.model_dump(mode="json"), at_least)
    # Which meters there are by default know those that settle it.
    declare(ownership.connection, config.declared, are_all=config.declares_meters or not isinstance(job, PostgresJob))
    return ownership, config


def _known_epochs(job: AnyJob, tables: str) -> Iterator[int]:
    """Those of drivers that wrote beside the database, which may know less: it was restored, or is new."""
    if isinstance(job, PostgresJob) and (beside := read_backup(tables, job.name)) is not None:
        yield beside.epoch
    for table in job.tables:
        yield committed_epoch(tables, table, job.name)


def _drive(
    job: AnyJob,
    context: Context[Any],
    reporter: Reporter,
    stopping: threading.Event,
    checkpoints: Iterator[Path],
) -> None:
    """Make sink and source from the committed state, and run until asked to stop."""
    if not java_runs(context.spark):
        raise RuntimeError("this driver's Java has ended, and only a new driver starts another")
    context.ownership.resume()
    LOOP.expect_round_within(START_SECONDS)
    with ExitStack() as held:
        start: Any = PostgresSink if isinstance(job, PostgresJob) else job.start
        sink = start(job, context)
        held.callback(sink.close)
        if isinstance(job, PostgresJob) and job.beside is not None:
            held.enter_context(job.beside(context))
        source: Source = (
            TopicSource(job, context, sink)
            if isinstance(job, TopicJob)
            else TableSource(job, context.config, context.environment, sink)
        )
        held.callback(source.close)
        held.callback(reporter.leave)
        reporter.follow(sink, source)
        try:
            Driver(context.spark, sink, source, reporter, stopping).run(checkpoints)
        except Exception as error:
            source.failed(error)
            if transient_error_of(error) is None:
                # A successor on the same machine also removes the checkpoint: an error from that is no crash.
                context.ownership.fence_if_followed()
            raise
        source.stopped()


def stop_on_signals(stopping: threading.Event, limit_seconds: float = STOP_LIMIT_SECONDS) -> None:
    """Set `stopping` at SIGTERM or SIGINT; a process that has not ended after the limit is killed.

    It may wait for a broker or a database that went before it; what is not committed is done again by its successor.
    """

    def stop(*_: object) -> None:
        stopping.set()
        last_resort = threading.Timer(limit_seconds, os._exit, [ExitStatus.STOPPED])
        last_resort.daemon = True
        last_resort.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def new_checkpoints(folder: Path, epoch: int) -> Iterator[Path]:
    """New, empty folders. Spark's checkpoint is scratch: the sink's own position decides where a start continues."""
    shutil.rmtree(folder, ignore_errors=True)
    return (folder / str(epoch) / str(number) for number in itertools.count())


def refuse_if_cancelled(query: Query | None) -> None:
    """Raises RuntimeError for a batch of a query that was ended."""
    if query is not None and query.is_cancelled:
        raise RuntimeError("this query was stopped: another one commits what it still reads")


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
        """The error of a batch in the sink, whose memory may be ahead of its last commit."""

    def run(self, checkpoints: Iterator[Path]) -> None:
        """Catch up, then stream; between batches let time pass and report. Each query has a checkpoint of its own."""
        tick_seconds = FIRST_TICK_SECONDS
        while not self._source.exists() and not self._stopping.wait(tick_seconds):
            self._reporter.report_if_due(Phase.WAITING)
            tick_seconds = min(TICK_SECONDS, 1.1 * tick_seconds)
        while not self._stopping.is_set():
            self._catch_up()
            if not self._stopping.is_set():
                self._stream(next(checkpoints))

    def _catch_up(self) -> None:
        for batch in self._source.backlog(self._spark):
            if self._stopping.is_set():
                return
            self._allow_longer_round()
            self._process(batch)
            self._reporter.report_if_due(Phase.CATCHING_UP)

    def _process(self, batch: Batch, query: Query | None = None) -> None:
        # Who ends a query has the turn and waits for its batch.
        while not self._turn.acquire(timeout=TURN_SECONDS):
            refuse_if_cancelled(query)
        try:
            refuse_if_cancelled(query)
            self._commit(batch)
        finally:
            self._turn.release()

    def _commit(self, batch: Batch) -> None:
        """With the turn. Raises RuntimeError once a batch has failed: a new sink begins with what is committed."""
        if self._failure is not None:
            raise RuntimeError("a batch has failed: what comes after it is for the next sink")
        started = time.monotonic()
        try:
            progress = self._sink.process(batch)
        except BaseException as error:
            self._failure = error
            raise
        self._reporter.batch(progress, time.monotonic() - started)

    @staticmethod
    def _allow_longer_round() -> None:
        """Announce how long a batch in the loop's own thread may take: it may be large, or wait for a lock."""
        LOOP.expect_round_within(START_SECONDS)

    def _on_batch(self, batch: DataFrame, query: Query) -> None:
        # A query that is to be rebuilt gets no further batch; otherwise one with back-to-back batches would never end.
        if query.restart_requested or self._stopping.is_set() or self._source.must_restart():
            query.leave()
        # A commit without rows, which only moves a frontier, is a batch too: it costs no Spark job here.
        elif self._source.has_news():
            self._process(self._source.instead_of(batch), query)

    def _stream(self, checkpoint: Path) -> None:
        query = Query(self._on_batch)
        streaming: StreamingQuery = (
            self._source.stream(self._spark)
            .writeStream.foreachBatch(query)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=self._source.trigger)
            .start()
        )
        try:
            while not self._stopping.is_set() and not self._must_restart(query):
                # Its stub knows only whole seconds.
                if streaming.awaitTermination(self._source.look_seconds):  # type: ignore[arg-type]
                    break
                self._tick()
        except Exception as error:
            if self._failure_of(query) is None:
                if not isinstance(error, PySparkException | Py4JError) or not self._source.can_go_on():
                    raise
                log.info("the input changed: the query is built again")
        finally:
            self._end(query, streaming)
            failure = self._failure_of(query)
            query.forget()
            # The sink's position says where the next one begins.
            shutil.rmtree(checkpoint, ignore_errors=True)
        # However the loop ended: a batch may have failed before Spark reported it.
        if failure is not None:
            raise failure from None

    def _failure_of(self, query: Query) -> BaseException | None:
        """What has failed in the sink, or before it in a batch of this query."""
        return self._failure or query.failure

    def _must_restart(self, query: Query) -> bool:
        """Not while a batch runs: its end would be waited for, and nothing be reported meanwhile."""
        return not self._turn.locked() and (query.restart_requested or self._source.must_restart())

    def _end(self, query: Query, streaming: StreamingQuery) -> None:
        """Stop a query between two batches. One that does not stop in time, because it waits for a broker, is left."""
        with self._turn:
            query.end()
            try:
                streaming.stop()
            except (PySparkException, Py4JError) as error:
                log.warning("the query has not stopped in time", reason=str(error).partition("\n")[0])

    def _tick(self) -> None:
        if self._turn.acquire(blocking=False):
            try:
                if (found := self._source.found()) is not None:
                    self._allow_longer_round()
                    self._commit(found)
                self._source.advance()
            finally:
                self._turn.release()
        self._reporter.report_if_due(Phase.RUNNING)
