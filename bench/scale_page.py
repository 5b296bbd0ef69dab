"""What one driver carries, computed from the runs of `make scale` that are kept: tables of docs/explanation/scale.md.

`python -m bench.scale_page` writes them into the page, with the runs that they are of, and draws the plot.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import RESULTS
from bench.scale_plot import COLUMNS, PLOT, ROWS_PER_EVENT, cases_of, kept_runs, plot

BUSY = 0.7
"""Of a core: what one process may use of it for long, so that it catches up after a stop."""
RATES = (50, 1_000, 10_000, 50_000)
EXECUTORS = 2
"""By the shares with so many, larger sizes are computed."""
PAGE = Path("docs/explanation/scale.md")
_MEASURED, _CAPACITY, _SIZES = (
    "| executors | rows in batches",
    "| executors | driver and its Java",
    "| events a second | ingestion",
)
"""How the first lines of the page's tables begin."""


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


def run_line(name: str, run: Mapping[str, Any], job: str) -> str:
    """Which run a table is of, and how busy the machine was when it ended."""
    load = run["machine"]["load_average"][0]
    return f"From [the last run that measured {job}](../../bench/results/{name}), which ended at a load of {load:.1f}."


def updated(page: str, runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The page with the tables of `runs`: names of files and what they hold, the oldest first.

    Tables of a job stand below the heading of its name, those of billing before the first one.
    """
    lines, found, job = page.splitlines(), list[str](), "billing"
    while lines:
        line = lines.pop(0)
        if line.startswith("## "):
            job = line.removeprefix("## ")
        found.append(line)
        if not line.startswith((_MEASURED, _CAPACITY, _SIZES)):
            continue
        found.append(lines.pop(0))
        while lines and lines[0].startswith("|"):
            lines.pop(0)
        if line.startswith(_SIZES):
            found += sizes_lines([run for _, run in runs])
            continue
        name, run = [(name, run) for name, run in runs if cases_of(run, job)][-1]
        if line.startswith(_CAPACITY):
            found += capacity_lines(run, job)
            continue
        found += [*measured_lines(run, job), "", run_line(name, run, job)]
        if lines[1:] and lines[1].startswith("From [the last run"):
            del lines[:2]
    return "\n".join(found) + "\n"


def main() -> None:
    """Write page and plot."""
    paths = sorted(RESULTS.glob("scale-*.json"))
    PAGE.write_text(updated(PAGE.read_text(), [(path.name, json.loads(path.read_text())) for path in paths]))
    PLOT.write_text(plot(kept_runs()))


if __name__ == "__main__":
    main()
