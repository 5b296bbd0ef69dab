"""What one driver carries, computed from a run of `make scale`: the lines of docs/explanation/scale.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

BUSY = 0.7
"""Of a core: what one process may use of it for long, so that it catches up after a stop."""
RATES = (50, 1_000, 10_000, 50_000)
EXECUTORS = 2
"""By the shares with so many, larger sizes are computed."""
ROWS_PER_EVENT = {"ingestion": 1.0, "joins": 1.0, "billing": 342_428 / 720_000}
"""Rows that a job reads of each event, in the recorded traffic."""
COLUMNS = ("driver", "driver_java", "executor_java", "workers", "database")


def cases_of(run: Mapping[str, Any], job: str) -> list[Mapping[str, Any]]:
    """What a run measured of a job. The first runs measured billing alone, and did not say it."""
    return [case for case in run["measured"] if case.get("job", "billing") == job]


def measured_lines(run: Mapping[str, Any], job: str) -> list[str]:
    """One line of a Markdown table per number of executors: CPU-seconds per million rows read, by who used them."""
    return [
        f"| {case['executors'] or 'none'} | {case['rows']:,} in {case['batches']} "
        + "".join(f"| {_seconds(case, column):.1f} " for column in COLUMNS)
        + "|"
        for case in cases_of(run, job)
    ]


def capacity_lines(run: Mapping[str, Any], job: str) -> list[str]:
    """What the driver's process with its Java, and one session of the database, carry in rows per second.

    Only billing waits for the database.
    """
    found = []
    for case in cases_of(run, job):
        driver, database = _seconds(case, "driver") + _seconds(case, "driver_java"), _seconds(case, "database")
        of_database = f" {database:.1f} | {_rows_a_second(database):,} |" if job == "billing" else ""
        found.append(f"| {case['executors'] or 'none'} | {driver:.1f} | {_rows_a_second(driver):,} |{of_database}")
    return found


def sizes_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each of RATES, in events a second, what ingestion, joins and billing need, by the last run with so many
    executors: alone in the driver while that keeps one core below BUSY, else with executors of one core each.
    """
    return [
        f"| {rate:,} | " + " | ".join(_size(runs, job, rate * share) for job, share in ROWS_PER_EVENT.items()) + " |"
        for rate in RATES
    ]


def _size(runs: Sequence[Mapping[str, Any]], job: str, rows_a_second: float) -> str:
    alone = _cores(_last(runs, job, 0), COLUMNS[:-1], rows_a_second)
    if alone <= BUSY:
        return f"`local`, {alone:.2f}"
    case = _last(runs, job, EXECUTORS)
    driver, tasks = (_cores(case, columns, rows_a_second) for columns in (COLUMNS[:2], COLUMNS[2:4]))
    cores, executors = (math.ceil(used / BUSY) for used in (driver, tasks))
    return f"`cluster`: driver {driver:.2f} (cores: {cores}), {executors} executors {tasks:.2f}"


def _last(runs: Sequence[Mapping[str, Any]], job: str, executors: int) -> Mapping[str, Any]:
    return [case for run in runs for case in cases_of(run, job) if case["executors"] == executors][-1]


def _cores(case: Mapping[str, Any], columns: Sequence[str], rows_a_second: float) -> float:
    return sum(_seconds(case, column) for column in columns) * rows_a_second / 1e6


def _seconds(case: Mapping[str, Any], column: str) -> float:
    return float(case["cpu_seconds_per_million_rows"][column])


def _rows_a_second(cpu_seconds_per_million: float) -> int:
    """Rounded to two digits, down."""
    exact = int(BUSY / cpu_seconds_per_million * 1e6)
    digits = max(0, len(str(exact)) - 2)
    return int(exact // 10**digits * 10**digits)
