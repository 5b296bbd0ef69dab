"""What the database says of a job's results: one statement per gauge, each bounded by an index.

A statement gives the values of the metric's labels in their order, then the value. What a closed set of labels allows
and no row names is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import psycopg

from jobs.runtime.postgres.straggler_totals import StragglerTotals
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
    """One gauge, read anew each time.

    `known` is one row of what `sql` is measured against; a null in it, or no row, means that nothing is known yet. Both
    know the job as `%(job)s`. They are two questions, because the planner finds the index only for values that it sees.
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


def _seconds(name: str) -> str:
    """An interval from a job's configuration."""
    return f"make_interval(secs => (config ->> '{name}')::float8)"


# Silence is measured at the frontier: while nothing can be read, nobody is known to be silent.
_SOURCES_KNOWN = f"""
    SELECT frontier - {_seconds("source_silent_after_seconds")} AS silent_before,
           frontier - {_seconds("source_seen_once_retired_after_seconds")} AS once_retired_before,
           frontier - {_seconds("source_retired_after_seconds")} AS retired_before
    FROM (SELECT config, (progress ->> 'frontier')::timestamptz AS frontier FROM jobs WHERE job = %(job)s) AS reached
"""
_SOURCES = """
    SELECT CASE WHEN last_seen_at < %(silent_before)s THEN 'silent' ELSE 'active' END, count(*)
    FROM (
        SELECT min(first_seen_at) AS first_seen_at, max(last_seen_at) AS last_seen_at FROM sources
        WHERE last_seen_at >= %(retired_before)s GROUP BY source
    ) AS living
    WHERE last_seen_at >= %(once_retired_before)s OR last_seen_at - first_seen_at > interval '1 minute'
    GROUP BY 1
"""
_MISSING = """
    SELECT coalesce(sum(upper(hole) - lower(hole)), 0)
    FROM sources CROSS JOIN LATERAL unnest(range_merge(sequences)::int8multirange - sequences) AS hole
    WHERE last_seen_at >= %(retired_before)s AND NOT isempty(sequences)
"""
_UNSEQUENCED = "SELECT count(*) FROM sources WHERE last_seen_at >= %(retired_before)s AND unsequenced"
_UNKNOWN_TYPES = """
    SELECT CASE WHEN place <= 20 AND type <> '' THEN type ELSE 'other' END, sum(events)
    FROM (SELECT type, events, row_number() OVER (ORDER BY events DESC, type) AS place FROM unknown_types) AS placed
    GROUP BY 1
"""
_SESSIONS_KNOWN = f"""
    SELECT frontier - {_seconds("session_gap_seconds")} AS over_before
    FROM positions JOIN jobs USING (job) WHERE job = %(job)s
"""
_OPEN_SESSIONS = "SELECT count(*) FROM sessions WHERE retracted_at IS NULL AND session_end >= %(over_before)s"
_WINDOWS_KNOWN = "SELECT frontier, closed_until, frontier - interval '1 hour' AS shown_from FROM closed_usage"
_WINDOWS = """
    SELECT CASE
               WHEN corrected THEN 'corrected'
               WHEN window_end > %(frontier)s THEN 'open'
               WHEN window_end > %(closed_until)s THEN 'closing'
               ELSE 'closed'
           END, count(*)
    FROM usage_windows WHERE window_start >= %(shown_from)s GROUP BY 1
"""
_EXITS = "SELECT job, how, count(*) FROM exits WHERE job = %(job)s GROUP BY job, how"
_ISOLATED = "SELECT reason, count(*) FROM isolated_records WHERE journalled_at IS NOT NULL GROUP BY reason"


def totals_of(job: str) -> tuple[Totals, ...]:
    """What a driver of `job` reads for its gauges; one instance per process."""
    own: dict[str, tuple[Totals, ...]] = {
        "ingestion": (
            Statement(metrics.SOURCES, job, _SOURCES, _SOURCES_KNOWN),
            Statement(metrics.MISSING, job, _MISSING, _SOURCES_KNOWN),
            Statement(metrics.UNSEQUENCED, job, _UNSEQUENCED, _SOURCES_KNOWN),
            Statement(metrics.UNKNOWN_TYPES, job, _UNKNOWN_TYPES),
            Statement(metrics.ISOLATED, job, _ISOLATED),
        ),
        "sessionization": (Statement(metrics.OPEN_SESSIONS, job, _OPEN_SESSIONS, _SESSIONS_KNOWN),),
        "billing": (Statement(metrics.WINDOWS, job, _WINDOWS, _WINDOWS_KNOWN), StragglerTotals()),
    }
    return (Statement(metrics.EXITED, job, _EXITS), *own.get(job, ()))
