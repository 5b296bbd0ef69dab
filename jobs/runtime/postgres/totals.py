"""Totals of a job's results from the database: one statement per gauge, each bounded by an index; each job has its own.

A statement gives the values of the metric's labels in their order, then the value. Label values of a closed set that no
row has are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import psycopg

from monitoring import metrics
from monitoring.instruments import GaugeMetric

Sample = tuple[GaugeMetric, tuple[str, ...], float]
"""A gauge, the values of its labels in their order, and its value."""


class Totals(Protocol):
    """Something that a scrape reads."""

    def read(self, cursor: psycopg.Cursor[Any]) -> Iterator[Sample]:
        """Every sample of its gauges."""


@dataclass(frozen=True)
class Statement:
    """One gauge, read again each time.

    `known` is one row of reference values for `sql`; a null in it, or no row, means that nothing is known yet. Both
    know the job as `%(job)s`. There are two statements, because the planner uses the index only for values it sees.
    """

    metric: GaugeMetric
    job: str
    sql: str
    known: str = ""

    def read(self, cursor: psycopg.Cursor[Any]) -> Iterator[Sample]:
        """The gauge's samples; none while nothing is known."""
        parameters = {"job": self.job}
        if self.known:
            found = cursor.execute(self.known, parameters)
            row, columns = found.fetchone(), [column.name for column in found.description or ()]
            if row is None or None in row:
                return
            parameters |= dict(zip(columns, row, strict=True))
        closed = [(self.job,) if name == "job" else values or () for name, values in self.metric.labels.items()]
        rows = {tuple(labels): float(value) for *labels, value in cursor.execute(self.sql, parameters).fetchall()}
        for labels, value in {**dict.fromkeys(product(*closed), 0.0), **rows}.items():
            yield self.metric, labels, value


def configured_seconds(name: str) -> str:
    """An interval from a job's configuration, as SQL over its row of `jobs`."""
    return f"make_interval(secs => (config ->> '{name}')::float8)"


_EXITS = "SELECT job, how, count(*) FROM exits WHERE job = %(job)s GROUP BY job, how"


def exits_of(job: str) -> Totals:
    """How the drivers of a job ended."""
    return Statement(metrics.EXITED, job, _EXITS)
