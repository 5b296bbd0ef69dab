"""Results as one JSON file per run, and as a table with the aims beside them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from bench.analytics import AnalyticsMeasured
from bench.audited import AuditMeasured
from bench.declared import Case, DeclaredMeasured
from bench.idle import IdleMeasured
from bench.posted import BATCHES, SINGLES, PostedMeasured
from bench.prices import VERSIONS, PricesMeasured
from bench.stack import StackMeasured
from bench.work import Measured, Plan
from jobs.runtime.spark import SHUFFLE_PARTITIONS
from jobs.stack import StackConfig
from laptop.java import find_java
from metering.vocabulary import ALWAYS, Job

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("weir", "pyspark", "deltalake", "polars", "pyarrow", "psycopg", "confluent-kafka")
AIMS = {"ingestion": 20.0, "sessionization": 6.0, "joins": 12.0, "billing": 6.0, "analytics": 8.0}
"""CPU-seconds per million events."""
METERS_AIMS = {Case.DECLARED: 1.3, Case.REPORTED: 3.0, Case.RULES: 1.3}
"""Times the cost of four meters."""
VERSIONS_AIM = 1.5
"""Times the cost of the fewest versions of prices."""
BILLING_AIMS = {Case.FOUR: None, Case.DIMENSION: 20.0}
"""CPU-seconds per million events, after less warm-up than `AIMS`: with and without a dimension, side by side."""
IDLE_AIMS_PERCENT = {"analytics": 1.2}
"""Of a core."""
IDLE_AIMS_MS = {"ingestion": 150, "sessionization": 250, "joins": 250, "billing": 250, "analytics": 250}


@dataclass(frozen=True)
class Run:
    """What was measured; None, or no application, where it was not asked for."""

    applications: list[Measured]
    watching: AnalyticsMeasured | None
    declared: DeclaredMeasured | None
    prices: PricesMeasured | None
    stack: StackMeasured | None
    posted: PostedMeasured | None
    idle: IdleMeasured | None
    audit: AuditMeasured | None


@dataclass(frozen=True)
class Line:
    """One number beside its aim; an aim is the most that is allowed."""

    what: str
    found: float
    aim: float | None
    unit: str

    @property
    def is_met(self) -> bool:
        """Whether it is within the aim."""
        return self.aim is None or self.found <= self.aim


def lines(run: Run) -> list[Line]:
    """What was found, in the order of the pipeline."""
    found = [
        Line(f"{job.job}, warm", job.cpu_seconds_per_million, AIMS[job.job], "CPU-s per million events")
        for job in run.applications
    ]
    if {job.job for job in run.applications} >= set(ALWAYS):
        total = sum(job.cpu_seconds_per_million for job in run.applications if job.job in ALWAYS)
        aim = sum(AIMS[job] for job in ALWAYS)
        found.append(Line("all four, warm", total, aim, "CPU-s per million events"))
    found += [
        Line(f"{job.job}, near-empty batch", job.cpu_ms_per_idle_batch, IDLE_AIMS_MS[job.job], "CPU-ms per batch")
        for job in run.applications
    ]
    if (watching := run.watching) is not None:
        found += _of_watching(watching)
    if (declared := run.declared) is not None:
        found += [
            Line(f"{case}: ingestion, joins and billing", declared.times_four(case), aim, "times 4 meters")
            for case, aim in METERS_AIMS.items()
        ]
        found += [
            Line(f"billing, {case}", declared.of(case, Job.BILLING), aim, "CPU-s per million events")
            for case, aim in BILLING_AIMS.items()
        ]
    if (prices := run.prices) is not None:
        found += _of_versions(prices)
    if (stack := run.stack) is not None:
        found += [
            Line("weir up until ready", stack.ready_seconds, None, "s"),
            Line("weir up until the first result", stack.first_result_seconds, 30.0, "s"),
            Line("appended to usage_windows, p50", stack.latency_p50_seconds, 4.0, "s"),
            Line("appended to usage_windows, p95", stack.latency_p95_seconds, None, "s"),
            Line("memory of the whole stack", stack.resident_mib, 6 * 1024.0, "MiB"),
        ]
    if (posted := run.posted) is not None:
        found += _of_posts(posted)
    if (idle := run.idle) is not None:
        found += [
            *[
                Line(f"{job}, idle", idle.percent_of_a_core(job), IDLE_AIMS_PERCENT.get(job), "% of a core")
                for job in idle.cpu_seconds
            ],
            Line("all four, idle", idle.percent_together, 5.0, "% of a core"),
            Line("first event after idleness to usage_windows", idle.first_result_seconds, None, "s"),
        ]
    if (audit := run.audit) is not None:
        found += [
            Line("audit of all, Spark's start with it", audit.cpu_seconds_per_million, 20.0, "CPU-s per million rows"),
            Line("the stack's p95 beside an audit, later by", audit.moved_seconds, 1.0, "s"),
        ]
    return found


def _of_watching(watching: AnalyticsMeasured) -> list[Line]:
    of, unit, what = watching.analytics, "CPU-s per million events", "two views, three patterns, 100 watches"
    parts = {
        "driver": of.driver_cpu_seconds_per_million,
        "Java": of.java_cpu_seconds_per_million,
        "workers": of.worker_cpu_seconds_per_million,
        "database": of.database_cpu_seconds_per_million,
    }
    return [
        Line("analytics and thresholds", watching.cpu_seconds_per_million, AIMS["analytics"], unit),
        *[Line(f"{what}: {part}", seconds, None, unit) for part, seconds in parts.items()],
        Line("1,000 thresholds, in billing", watching.thresholds_cpu_seconds_per_million, None, unit),
        *[
            line
            for name, job in {"analytics": of, "billing with thresholds": watching.billing_with_thresholds}.items()
            for line in _of_batches(name, job)
        ],
    ]


def _of_batches(name: str, job: Measured) -> list[Line]:
    return [
        Line(f"{name}: batches", job.full.batches, None, "batches"),
        Line(f"{name}: rows of usage", job.rows_per_batch, None, "rows per batch"),
        Line(f"{name}: database included", job.cpu_ms_per_batch, None, "CPU-ms per batch"),
    ]


def _of_posts(posted: PostedMeasured) -> list[Line]:
    found = []
    for load, answered, aim_ms in ((BATCHES, posted.batches, 250.0), (SINGLES, posted.singles, None)):
        what = f"POSTs of {load.events_per_request}, {load.requests_per_second}/s"
        found += [
            Line(f"{what}: p50", answered.p50_ms, None, "ms"),
            Line(f"{what}: p99", answered.p99_ms, aim_ms, "ms"),
            Line(f"{what}: not taken", answered.failed, 0.0, "requests"),
            Line(f"{what}: the API", answered.cpu_seconds_per_million, None, "CPU-s per million events"),
        ]
    return found


def _of_versions(prices: PricesMeasured) -> list[Line]:
    fewest, *more = VERSIONS
    events, outcomes, times = "CPU-s per million events", "CPU-s per million outcomes", f"times {fewest:,}"
    return [
        *[Line(f"pricing, {m:,} versions", prices.times_fewest(m), VERSIONS_AIM, times) for m in more],
        *[Line(f"pricing, {m:,} versions", seconds, None, outcomes) for m, seconds in prices.pricing.items()],
        *[Line(f"a price changed, {m:,} versions", ms, None, "CPU-ms per batch") for m, ms in prices.changed.items()],
        *[Line(f"joins, {m:,} versions", prices.joins_times_fewest(m), VERSIONS_AIM, times) for m in more],
        *[
            Line(f"joins, {m:,} versions", job.cpu_seconds_per_million, None, events)
            for m, job in [*prices.joins.items(), (fewest, prices.again)]
        ],
        *[Line(f"joins, {m:,} versions, memory", job.resident_mib, None, "MiB") for m, job in prices.joins.items()],
    ]


def table(found: list[Line]) -> Table:
    """The lines for a terminal."""
    shown = Table("what", "found", "aim", "unit", title="What metering costs here")
    for column in shown.columns[1:3]:
        column.justify = "right"
    for line in found:
        style = "green" if line.aim is not None and line.is_met else "" if line.is_met else "red"
        shown.add_row(
            line.what, f"{line.found:,.1f}", "" if line.aim is None else f"{line.aim:,g}", line.unit, style=style
        )
    return shown


def write(run: Run, plan: Plan, now: datetime) -> Path:
    """Write everything that was found, with what it was found on, to a file named by `now`."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    content: dict[str, Any] = {
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "java": _java_version(),
            **{package: version(package) for package in PACKAGES},
        },
        "settings": {
            **asdict(plan),
            "shuffle_partitions": SHUFFLE_PARTITIONS,
            "jobs": {name: config.model_dump(mode="json") for name, config in StackConfig().items()},
        },
        "summary": [asdict(line) | {"is_met": line.is_met} for line in lines(run)],
        "applications": [asdict(job) | _derived(job) for job in run.applications],
        "watching": None if run.watching is None else _by_part(run.watching),
        "declared": None if run.declared is None else _by_case(run.declared),
        "prices": None if run.prices is None else _by_versions(run.prices),
        "stack": None if run.stack is None else asdict(run.stack),
        "posted": None if run.posted is None else asdict(run.posted),
        "idle": None if run.idle is None else asdict(run.idle),
        "audit": None if run.audit is None else asdict(run.audit),
    }
    file.write_text(json.dumps(_rounded(content), indent=2) + "\n", encoding="utf-8")
    return file


def _by_part(watching: AnalyticsMeasured) -> dict[str, Any]:
    jobs = {
        "analytics": watching.analytics,
        "billing": watching.billing,
        "billing_with_thresholds": watching.billing_with_thresholds,
    }
    return {name: asdict(job) | _derived(job) for name, job in jobs.items()}


def _by_case(declared: DeclaredMeasured) -> dict[str, Any]:
    return {case: [asdict(job) | _derived(job) for job in jobs] for case, jobs in declared.applications.items()}


def _by_versions(prices: PricesMeasured) -> dict[str, Any]:
    cases = [(f"{count}", job) for count, job in prices.joins.items()] + [("again", prices.again)]
    return {
        "pricing_cpu_seconds_per_million": prices.pricing,
        "changed_cpu_ms": prices.changed,
        "joins": {case: asdict(job) | _derived(job) for case, job in cases},
    }


def machine() -> dict[str, Any]:
    """Cores, memory, and how busy it was with other things."""
    return {
        "cores": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg(),
    }


def _java_version() -> str:
    answer = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    return answer.stderr.splitlines()[0]


def _processor() -> str:
    try:
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    except OSError:
        models = []
    return models[0].partition(":")[2].strip() if models else platform.machine()


def _derived(job: Measured) -> dict[str, float]:
    return {
        "cpu_seconds_per_million": job.cpu_seconds_per_million,
        "cpu_seconds_per_million_read": job.cpu_seconds_per_million_read,
        "database_cpu_seconds_per_million": job.database_cpu_seconds_per_million,
        "driver_cpu_seconds_per_million": job.driver_cpu_seconds_per_million,
        "java_cpu_seconds_per_million": job.java_cpu_seconds_per_million,
        "worker_cpu_seconds_per_million": job.worker_cpu_seconds_per_million,
        "cpu_ms_per_idle_batch": job.cpu_ms_per_idle_batch,
        "events_per_batch": job.events_per_batch,
        "rows_per_batch": job.rows_per_batch,
        "cpu_ms_per_batch": job.cpu_ms_per_batch,
    }


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as the measurement has."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
    return value
