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

from jobs.runtime.straggler_totals import StragglerTotals
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
    """One gauge, read anew each time. `sql` knows the job as `%(job)s`."""

    metric: GaugeMetric
    job: str
    sql: str

    def read(self, cursor: psycopg.Cursor[Any]) -> Iterator[Sample]:
        """The gauge's samples; none while what it is measured against is not known (a null value)."""
        rows = cursor.execute(self.sql, {"job": self.job}).fetchall()
        if any(value is None for *_, value in rows) or not (rows or self.metric.labels):
            return
        closed = [(self.job,) if name == "job" else values or () for name, values in self.metric.labels.items()]
        found = {tuple(labels): float(value) for *labels, value in rows}
        for labels, value in {**dict.fromkeys(product(*closed), 0.0), **found}.items():
            yield self.metric, labels, value


# Silence is measured at the frontier: while nothing can be read, nobody is known to be silent.
_JUDGED_SOURCES = """
    WITH judged AS (
        SELECT (progress ->> 'frontier')::timestamptz AS frontier,
               make_interval(secs => (config ->> 'source_silent_after_seconds')::float8) AS silent_after,
               make_interval(secs => (config ->> 'source_retired_after_seconds')::float8) AS retired_after
        FROM jobs WHERE job = 'ingestion'
    )
"""
_SOURCES = f"""
    {_JUDGED_SOURCES}
    SELECT CASE WHEN last_seen_at < frontier - silent_after THEN 'silent' ELSE 'active' END,
           CASE WHEN bool_and(frontier IS NOT NULL) THEN count(last_seen_at) END
    FROM judged LEFT JOIN LATERAL (
        SELECT max(last_seen_at) AS last_seen_at FROM sources
        WHERE last_seen_at >= frontier - retired_after GROUP BY source
    ) AS living ON true
    GROUP BY 1
"""
_MISSING = f"""
    {_JUDGED_SOURCES}
    SELECT (
        SELECT coalesce(sum(upper(hole) - lower(hole)), 0)
        FROM sources CROSS JOIN LATERAL unnest(range_merge(sequences)::int8multirange - sequences) AS hole
        WHERE last_seen_at >= frontier - retired_after AND NOT isempty(sequences)
    ) FROM judged WHERE frontier IS NOT NULL
"""
_UNSEQUENCED = f"""
    {_JUDGED_SOURCES}
    SELECT (SELECT count(*) FROM sources WHERE last_seen_at >= frontier - retired_after AND unsequenced)
    FROM judged WHERE frontier IS NOT NULL
"""
_OPEN_SESSIONS = """
    SELECT (SELECT count(*) FROM sessions WHERE retracted_at IS NULL AND session_end >= over_before)
    FROM (
        SELECT frontier - make_interval(secs => (config ->> 'session_gap_seconds')::float8) AS over_before
        FROM positions JOIN jobs USING (job) WHERE job = 'sessionization' AND frontier IS NOT NULL
    ) AS reached
"""
_WINDOWS = """
    SELECT state, count(*)
    FROM (
        SELECT CASE
            WHEN window_end > frontier THEN 'open'
            WHEN window_end > frontier - make_interval(secs => (config ->> 'grace_seconds')::float8) THEN 'closing'
            WHEN corrected THEN 'corrected'
            ELSE 'closed'
        END AS state
        FROM positions JOIN jobs USING (job) JOIN usage_windows ON window_start >= frontier - interval '1 hour'
        WHERE job = 'billing'
    ) AS judged
    GROUP BY state
"""
_EXITS = "SELECT job, how, count(*) FROM exits WHERE job = %(job)s GROUP BY job, how"


def totals_of(job: str) -> tuple[Totals, ...]:
    """What a driver of `job` reads for its gauges; one instance per process."""
    own: dict[str, tuple[Totals, ...]] = {
        "ingestion": (
            Statement(metrics.SOURCES, job, _SOURCES),
            Statement(metrics.MISSING, job, _MISSING),
            Statement(metrics.UNSEQUENCED, job, _UNSEQUENCED),
        ),
        "sessionization": (Statement(metrics.OPEN_SESSIONS, job, _OPEN_SESSIONS),),
        "billing": (Statement(metrics.WINDOWS, job, _WINDOWS), StragglerTotals()),
    }
    return (Statement(metrics.EXITED, job, _EXITS), *own.get(job, ()))
