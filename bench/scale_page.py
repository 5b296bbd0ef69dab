"""What one driver carries, computed from a run of `make scale`: the lines of docs/explanation/scale.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUSY = 0.7
"""Of a core: what one process may use of it for long, so that it catches up after a stop."""
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

    joins does not wait for the database.
    """
    found = []
    for case in cases_of(run, job):
        driver, database = _seconds(case, "driver") + _seconds(case, "driver_java"), _seconds(case, "database")
        of_database = f" {database:.1f} | {_rows_a_second(database):,} |" if job == "billing" else ""
        found.append(f"| {case['executors'] or 'none'} | {driver:.1f} | {_rows_a_second(driver):,} |{of_database}")
    return found


def _seconds(case: Mapping[str, Any], column: str) -> float:
    return float(case["cpu_seconds_per_million_rows"][column])


def _rows_a_second(cpu_seconds_per_million: float) -> int:
    """Rounded to two digits, down."""
    exact = int(BUSY / cpu_seconds_per_million * 1e6)
    digits = max(0, len(str(exact)) - 2)
    return int(exact // 10**digits * 10**digits)
