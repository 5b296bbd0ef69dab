"""Gauges that are read from the database when they are scraped: never during a batch, never older than a moment.

A gauge that cannot be read is not exposed: an old or empty number would claim that all is well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import structlog
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.totals import Sample, Totals
from metering.instants import Clock
from monitoring import metrics

log = structlog.get_logger()

FRESH_SECONDS = 10.0
"""However often metrics are scraped, the database is read at most once in this time."""
SILENT_AFTER_SECONDS = 3.0
STATEMENT_TIMEOUT = "2s"


class DatabaseGauges(Collector):
    """The gauges of `totals`, on a read-only connection of their own."""

    def __init__(self, job: str, postgres_url: str, totals: tuple[Totals, ...], clock: Clock) -> None:
        self._job = job
        self._postgres_url = postgres_url
        self._totals = totals
        self._clock = clock
        self._connection: psycopg.Connection[Any] | None = None
        self._samples: list[Sample] = []
        self._due = 0.0
        self._turn = threading.Lock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What a scrape sees."""
        with self._turn:
            if self._clock.monotonic() >= self._due:
                self._samples = self._read()
                self._due = self._clock.monotonic() + FRESH_SECONDS
            samples = self._samples
        families: dict[str, GaugeMetricFamily] = {}
        for metric, labels, value in samples:
            family = families.setdefault(
                metric.name, GaugeMetricFamily(metric.name, metric.help, labels=list(metric.labels))
            )
            family.add_metric(labels, value)
        yield from families.values()

    def _read(self) -> list[Sample]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connected()
            with self._connection.cursor() as cursor:
                samples = [sample for totals in self._totals for sample in totals.read(cursor)]
        except psycopg.Error as error:
            log.warning("gauges could not be read from the database", job=self._job, error=str(error))
            return [(metrics.DATABASE_READABLE, (self._job,), 0.0)]
        return [(metrics.DATABASE_READABLE, (self._job,), 1.0), *samples]

    def _connected(self) -> psycopg.Connection[Any]:
        # What the server does not answer in time is cut on both sides, or a scrape would hang for ever.
        return Session.to(
            self._postgres_url,
            f"weir {self._job} gauges",
            options=f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_TIMEOUT}",
            silent_after_seconds=SILENT_AFTER_SECONDS,
            # Planned each time with the values: they move along the index.
            prepare_threshold=None,
        )

    def close(self) -> None:
        """Show nothing any more, and end the database session."""
        with self._turn:
            self._due, self._samples = float("inf"), []
            if self._connection is not None:
                self._connection.close()
