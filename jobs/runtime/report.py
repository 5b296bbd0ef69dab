"""What a driver reports: Prometheus metrics, and a row for `weir status`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from math import isfinite
from typing import Any

import psycopg
import structlog
from psycopg.types.json import Jsonb

from jobs.runtime.catch_up import CatchUp
from jobs.runtime.errors import Fenced, NotYet
from jobs.runtime.job import AnyJob, Progress, Sink
from jobs.runtime.postgres.gauges import DatabaseGauges
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.totals import exits_of
from jobs.runtime.postgres.unavailable import database_is_unavailable
from jobs.runtime.source import Source
from jobs.runtime.waiting import Waiting
from metering.instants import Clock, rfc3339
from metering.reports import REPORT_SECONDS, Phase
from metering.vocabulary import Cause
from monitoring import metrics
from monitoring.instruments import REGISTRY
from monitoring.liveness import LOOP, ROUND_SECONDS

log = structlog.get_logger()

STATEMENT_TIMEOUT = "5s"


class Reporter:
    """Counts the work of batches, and reports every few seconds how far behind the job is."""

    def __init__(self, job: AnyJob, postgres_url: str, ownership: Ownership, waiting: Waiting, clock: Clock) -> None:
        self._job = job.name
        self._clock = clock
        self._epoch = ownership.epoch
        self._waiting = waiting
        self._sink: Sink | None = None
        self._source: Source | None = None
        self._last: dict[str, Any] = {}
        self._progress: dict[str, Any] = {}
        self._due = 0.0
        self._state: Phase | None = None
        self._catch_up = CatchUp()
        self._reported_frontier: datetime | None = None
        self._postgres_url = postgres_url
        self._connection: psycopg.Connection[Any] | None = None
        metrics.EPOCH.set(ownership.epoch, job=job.name)
        metrics.RESTARTS.set(ownership.epoch - 1, job=job.name)
        # A start counts as progress; otherwise a job that hangs from its start would never be seen as stalled.
        metrics.LAST_PROGRESS.set(clock.now().timestamp(), job=job.name)
        self._gauges = DatabaseGauges(job.name, postgres_url, (exits_of(job.name), *job.totals(job.name)), clock)
        REGISTRY.register(self._gauges)

    def follow(self, sink: Sink, source: Source) -> None:
        """From now on reports are of these."""
        self._sink, self._source = sink, source
        self._reported_frontier = sink.frontier()

    def leave(self) -> None:
        """Follow nothing: what a sink remembers must be gone before its successor remembers as much."""
        self._sink, self._source = None, None

    def batch(self, progress: Progress, seconds: float) -> None:
        """Count one committed batch."""
        self._waiting.over()
        if progress.records == 0:
            # Nothing moved, so it is no progress: a job that never reads anything must be seen as stalled.
            return
        now = self._clock.now()
        metrics.LAST_PROGRESS.set(now.timestamp(), job=self._job)
        self._catch_up.batch(self._clock.monotonic(), progress.records, seconds)
        metrics.BATCH_DURATION.observe(seconds, job=self._job)
        metrics.BATCH_RECORDS.inc(progress.records, job=self._job)
        for (metric, *values), increase in progress.counts.items():
            metric.inc(increase, **dict(zip(metric.labels, values, strict=True)))
        if progress.lateness is not None:
            metrics.LATENESS.add(progress.lateness.counts, progress.lateness.total_seconds)
        self._last = {
            "last_batch_at": rfc3339(now),
            "last_batch_records": progress.records,
            "last_batch_ms": round(seconds * 1000),
        }
        log.info("batch", job=self._job, **self._last)

    def report_if_due(self, state: Phase) -> None:
        """Report when the state is new or the last report some seconds old."""
        if state != self._state or self._clock.monotonic() >= self._due:
            self.report(state)
            self._state = state
            self._due = self._clock.monotonic() + REPORT_SECONDS

    def report_waiting(self) -> None:
        """Report what the job waits for; without the database only its metrics show it."""
        went_round(self._job, self._clock.now())
        with suppress(NotYet):
            self._write(Phase.WAITING)

    def report_stopped(self) -> None:
        """Report that the driver was asked to stop, if the database is reachable."""
        with suppress(NotYet):
            self._write(Phase.STOPPED)

    def report(self, state: Phase) -> None:
        """Set the lag metrics and the job's row. Raises Fenced when another driver owns the job, NotYet without it."""
        assert self._sink is not None, "there is nothing to report before there is a sink to follow"
        assert self._source is not None
        behind, _ = self._source.lag()
        now, frontier = self._clock.now(), self._sink.frontier()
        if behind == 0:
            self._waiting.over()
        seconds = max(0.0, (now - frontier).total_seconds()) if behind and frontier else 0.0
        catch_up = self._catch_up.seconds(self._clock.monotonic(), behind)
        metrics.LAG_RECORDS.set(behind, job=self._job)
        if frontier is not None:
            metrics.FRONTIER.set(frontier.timestamp(), job=self._job)
        if frontier != self._reported_frontier:
            # Where no record comes, only the frontier moves.
            metrics.LAST_PROGRESS.set(now.timestamp(), job=self._job)
            self._reported_frontier = frontier
        if not behind or frontier is not None:
            metrics.LAG_SECONDS.set(seconds, job=self._job)
        if catch_up is not None:
            metrics.CATCH_UP.set(catch_up, job=self._job)
        went_round(self._job, now)
        for metric, value in self._sink.gauges().items():
            metric.set(value)
        self._progress = {
            "records_behind": behind,
            "seconds_behind": round(seconds, 3) if not behind or frontier else None,
            # JSON has no infinity.
            "catch_up_seconds": round(catch_up, 3) if catch_up is not None and isfinite(catch_up) else None,
            "frontier": frontier and rfc3339(frontier),
            **self._last,
            **({"topics": topics} if (topics := self._source.lag_by_topic()) else {}),
            **({"retention": retention} if (retention := self._source.retention()) else {}),
            **self._sink.status(),
        }
        self._write(Phase.WAITING if self._waiting.transient_error is not None else state)

    def _write(self, state: Phase) -> None:
        """The job's row. A lost session is recreated once: the database may have been restarted meanwhile."""
        try:
            updated = self._update(state)
        except psycopg.errors.QueryCanceled:
            # A batch of this driver holds the row until it is committed: the next report comes soon.
            return
        except (psycopg.OperationalError, psycopg.InterfaceError):
            try:
                updated = self._update(state)
            except psycopg.Error as error:
                if not database_is_unavailable(error):
                    raise
                raise NotYet(Cause.DATABASE, f"the database does not answer: {error}") from error
        if updated == 0:
            raise Fenced(f"{self._job}: epoch {self._epoch} is no longer the newest")

    def _update(self, state: Phase) -> int:
        if self._connection is None or self._connection.closed:
            # One of its own: the owner's may be inside a batch's transaction.
            self._connection = Session.to(
                self._postgres_url, f"weir {self._job} report", options=f"-c statement_timeout={STATEMENT_TIMEOUT}"
            )
        return self._connection.execute(
            "UPDATE jobs SET state = %s, progress = %s, updated_at = clock_timestamp() WHERE job = %s AND epoch = %s",
            [state, Jsonb({**self._progress, **self._waiting.progress()}), self._job, self._epoch],
        ).rowcount

    def close(self) -> None:
        """End the database sessions."""
        REGISTRY.unregister(self._gauges)
        self._gauges.close()
        if self._connection is not None:
            self._connection.close()


def went_round(job: str, now: datetime) -> None:
    """Say that the driver's loop still goes round, to who reads its metrics and to who would end it."""
    metrics.LAST_REPORT.set(now.timestamp(), job=job)
    LOOP.expect_round_within(ROUND_SECONDS)
