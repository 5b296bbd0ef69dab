"""What `make scale` reports is what it measured, and the guide's page is computed from the last run that is kept."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from bench.report import RESULTS
from bench.scale import Measured, Share, _role, document, estimated_seconds
from bench.scale_page import PAGE, capacity_lines, measured_lines, run_line, sizes_lines, updated
from bench.scale_plot import PLOT, cases_of, kept_runs, plot

DRIVER = 7
RUNS: list[tuple[str, dict[str, Any]]] = [
    (path.name, json.loads(path.read_text())) for path in sorted(RESULTS.glob("scale-*.json"))
]


@pytest.mark.parametrize(
    ("pid", "command", "role"),
    [
        (DRIVER, "python -m jobs billing", "driver"),
        (8, "java -cp jars org.apache.spark.deploy.SparkSubmit pyspark-shell", "driver_java"),
        (9, "java org.apache.spark.executor.CoarseGrainedExecutorBackend --cores 1", "executor_java"),
        (10, "python -m pyspark.daemon pyspark.worker", "workers"),
    ],
)
def test_each_process_below_a_driver_has_one_role(pid: int, command: str, role: str) -> None:
    process: Any = SimpleNamespace(pid=pid, cmdline=command.split)
    assert _role(process, DRIVER) == role


def test_a_run_is_kept_with_its_seconds_and_per_million_rows() -> None:
    before, after = Share(1, 1, 0, 0, 2), Share(3, 2, 0.5, 1, 5)
    used = after - before
    assert used == Share(2, 1, 0.5, 1, 3)
    assert used.total == 4.5
    (kept,) = document([Measured("joins", 2, 500_000, 3, 9.0, used)], 1_000_000)["measured"]
    assert (kept["job"], kept["executors"], kept["rows"], kept["batches"]) == ("joins", 2, 500_000, 3)
    assert kept["cpu_seconds"]["driver"] == 2
    assert kept["cpu_seconds_per_million_rows"]["database"] == 6


@pytest.mark.parametrize("job", ["ingestion", "joins", "billing"])
def test_each_number_of_the_page_is_of_the_last_run_that_measured_the_job(job: str) -> None:
    page = PAGE.read_text()
    name, run = [(name, run) for name, run in RUNS if cases_of(run, job)][-1]
    for line in (*measured_lines(run, job), *capacity_lines(run, job)):
        assert f"\n{line}\n" in page, line
    assert f"\n{run_line(name, run, job)}\n" in page


def test_the_sizes_on_the_page_are_computed_from_the_runs_that_are_kept() -> None:
    page = PAGE.read_text()
    for line in sizes_lines([run for _, run in RUNS]):
        assert f"\n{line}\n" in page, line


def test_the_plot_on_the_page_is_drawn_from_the_runs_that_are_kept() -> None:
    assert PLOT.read_text() == plot(kept_runs()), "python -m bench.scale_page"
    assert f"](../{PLOT.relative_to('docs')})" in PAGE.read_text()


def test_a_bar_of_the_plot_is_as_long_as_its_seconds() -> None:
    def case(executors: int, **used: float) -> dict[str, Any]:
        of_all = dict.fromkeys(("driver", "driver_java", "executor_java", "workers", "database"), 0.0)
        return {"executors": executors, "cpu_seconds_per_million_rows": of_all | used}

    cases = [case(0, driver=6.0, workers=2.0, database=90.0), case(2, driver=1.0, driver_java=1.0)]
    run = {"measured": [{"job": job, **one} for job in ("ingestion", "joins", "billing") for one in cases]}
    drawn = plot([{"measured": []}, run])
    assert drawn.count(">8.0</text>") == drawn.count(">2.0</text>") == 3
    lengths = [float(found) for found in re.findall(r'width="([\d.]+)" height="15"', drawn)]
    assert lengths == [*(360.0, 0.0, 0.0, 120.0), *(60.0, 60.0, 0.0, 0.0)] * 3
    assert "joins, 2 executors<" in drawn


def test_a_size_has_executors_where_one_core_would_be_busy_and_as_many_as_keep_each_below_that() -> None:
    def case(executors: int, **used: float) -> dict[str, Any]:
        of_all = dict.fromkeys(("driver", "driver_java", "executor_java", "workers", "database"), 0.0)
        return {"executors": executors, "cpu_seconds_per_million_rows": of_all | used}

    by_count = [case(0, driver=20.0, workers=8.0), case(2, driver=11.0, driver_java=4.0, executor_java=9.0, workers=21)]
    run = {"measured": [{"job": job, **one} for job in ("ingestion", "joins", "billing") for one in by_count]}
    few, _, many, most = sizes_lines([run])
    assert few.startswith("| 50 | `local`, 0.00 |")
    assert many.startswith("| 10,000 | `local`, 0.28 |")
    assert most.startswith("| 50,000 | `cluster`: driver 0.75 (cores: 2), 3 executors 1.50 |"), most


def test_the_page_changes_with_a_new_run_in_the_tables_of_its_job_alone() -> None:
    page = PAGE.read_text()
    assert updated(page, RUNS) == page
    [*_, run] = [run for _, run in RUNS if cases_of(run, "ingestion")]
    cases = [{**case, "rows": case["rows"] + 1_000_000} for case in cases_of(run, "ingestion")]
    new = updated(page, [*RUNS, ("scale-new.json", {**run, "measured": cases})])
    changed = [line for line in new.splitlines() if line not in page.splitlines()]
    assert len(changed) == len(cases) + 1
    assert sum("scale-new.json" in line for line in changed) == 1
    assert all(line in new for line in capacity_lines(run, "ingestion"))


def test_an_estimate_grows_with_events_and_names_what_was_never_measured() -> None:
    def run(seconds: float) -> dict[str, Any]:
        return {"measured": [{"job": "joins", "executors": 2, "rows": 600_000, "seconds": seconds}]}

    few, many = (estimated_seconds([run(99), run(60)], ["joins"], [2], events) for events in (1_200_000, 2_400_000))
    assert few is not None
    assert many is not None
    assert many - few > 60
    assert estimated_seconds([run(60)], ["joins", "billing"], [2], 1_200_000) is None
