"""`python -m bench.scale`: what ingestion, joins and billing cost the driver, Java, executors and the database, by
executors.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import psutil
import psycopg
import typer
from rich.console import Console
from rich.table import Table as ConsoleTable

from bench.application import Application
from bench.events import records
from bench.parts import Parts, Setting, publish_catalog, running_parts, send
from bench.processes import cpu_seconds, own_cpu_seconds, tree
from bench.recording import Recording
from bench.report import RESULTS, machine
from bench.scale_plot import ROWS_PER_EVENT, cases_of, kept_runs
from bench.work import READS, Marks, Plan, measure_ingestion, measure_reader
from deployment.positions import describe, ends
from jobs.runtime.config import JobConfig
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.schema import migrate
from jobs.stack import StackConfig
from jobs.streams import EVENTS_TOPIC, CatalogTopic
from laptop.database import embedded_database
from laptop.folders import Folders
from metering.vocabulary import Job

WARM_UP_SHARE = 0.4
START_SECONDS = 60.0
"""Of each case: a database, an application with its executors, and the end of both."""
RECORDED_A_SECOND = 5_000
"""Events that are sent, journalled and joined, before anything is measured."""
ROWS_AT_ONCE = 1_000_000
EXECUTOR_MIB = 512
READERS = (Job.JOINS.value, Job.BILLING.value)
"""In the order in which data flows: each reads what the one before it has recorded."""
MEASURED = (Job.INGESTION.value, *READERS)
IN_DRIVER = "ingestion_in_driver"
"""ingestion whose driver writes batches of any size: what its second pass is compared with, in the same run."""


@dataclass(frozen=True)
class Share:
    """CPU-seconds by who used them."""

    driver: float
    driver_java: float
    executor_java: float
    workers: float
    database: float

    def __sub__(self, before: Share) -> Share:
        names = asdict(self)
        return Share(**{name: value - getattr(before, name) for name, value in names.items()})

    @property
    def total(self) -> float:
        """All but the database."""
        return self.driver + self.driver_java + self.executor_java + self.workers


@dataclass(frozen=True)
class Measured:
    """`used` for so many rows of what a job reads, in so many batches, with so many executors; 0: the driver alone, as
    `small`.
    """

    job: str
    executors: int
    rows: int
    batches: int
    seconds: float
    used: Share

    @property
    def per_million(self) -> Share:
        """CPU-seconds per million of these rows."""
        return Share(**{name: value / self.rows * 1e6 for name, value in asdict(self.used).items()})


def main(
    events: Annotated[int, typer.Option(help="Events that are recorded, twice as many as rows of usage.")] = 1_200_000,
    executors: Annotated[str, typer.Option(help="How many executors, by commas; 0 is the driver alone.")] = "0,1,2,4",
    jobs: Annotated[str, typer.Option(help=f"Which of {', '.join((*MEASURED, IN_DRIVER))}, by commas.")] = ",".join(
        MEASURED
    ),
    keep: Annotated[
        Path | None, typer.Option(help="Keep all data and logs in this folder; what is recorded there is used again.")
    ] = None,
) -> None:
    """Measure ingestion on a topic, joins and billing on what was recorded, with each number of executors on this
    machine.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    console = Console(stderr=True, highlight=False)
    counts = [int(count) for count in executors.split(",")]
    seconds = estimated_seconds(kept_runs(), jobs.split(","), counts, events)
    console.print("Takes an unknown time." if seconds is None else f"Takes about {seconds / 60:.0f} minutes.")
    before = {"load_before": round(os.getloadavg()[0], 2), "commit": _commit()}
    with tempfile.TemporaryDirectory(prefix="weir-scale-") as scratch:
        folder = keep or Path(scratch)
        with running_parts(folder, Setting(_settings(0))) as parts:
            names, found = jobs.split(","), list[Measured]()
            if set(names) & set(READERS):
                marks = _record(folder, parts, events, console)
                found += [
                    _measure(job, folder, parts, marks[job], n, console)
                    for job in names
                    if job in marks
                    for n in counts
                ]
            if measuring := [job for job in (IN_DRIVER, Job.INGESTION.value) if job in names]:
                _send(parts, events, console)
                found += [
                    _measure_ingestion(job, folder, parts, events, count, console)
                    for count in counts
                    for job in measuring
                ]
    for job in jobs.split(","):
        Console().print(table(job, [case for case in found if case.job == job]))
    path = RESULTS / f"scale-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    path.write_text(json.dumps(before | document(found, events), indent=2) + "\n")
    console.print(f"Written to {path}")
    if _commit() != before["commit"]:
        console.print("The code has changed meanwhile: what was measured is a mixture. Delete the file, and run again.")
    console.print(
        "`python -m bench.scale_page` brings page and plot up to date; read the text around its tables again."
    )


def estimated_seconds(
    runs: Sequence[Mapping[str, Any]], jobs: Sequence[str], executors: Sequence[int], events: int
) -> float | None:
    """How long a run takes, by the last one that is kept of each job and number of executors; None: one has none."""
    seconds = events / RECORDED_A_SECOND
    for job in jobs:
        for count in executors:
            kept = [case for run in runs for case in cases_of(run, job) if case["executors"] == count]
            if not kept:
                return None
            # Each warms up with what it is not measured by, so it reads all.
            rows = events * ROWS_PER_EVENT.get(job, 1.0)
            seconds += START_SECONDS + kept[-1]["seconds"] / kept[-1]["rows"] * rows
    return seconds


def _commit() -> str:
    """What the code is, with a mark where files differ from it; empty outside a repository."""
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _settings(executors: int, *, in_driver: bool = False) -> StackConfig:
    few = {"driver_rows": 1} if executors else {}
    config = JobConfig(max_records_per_batch=ROWS_AT_ONCE).model_dump(include={"max_records_per_batch"}) | few
    ingestion = {Job.INGESTION.value: {"driver_rows": ROWS_AT_ONCE}} if in_driver else {}
    return StackConfig.model_validate({"jobs": dict.fromkeys(READERS, config) | ingestion})


def _record(folder: Path, parts: Parts, events: int, console: Console) -> dict[str, Marks]:
    """What the shipped applications write, by its reader; the first part is to warm up."""
    noted = folder / "marks.json"
    if noted.exists():
        return {job: Marks(**marks) for job, marks in json.loads(noted.read_text()).items()}
    warm = int(events * WARM_UP_SHARE)
    plan = Plan(warm, events - warm, 0)

    def tell(text: str) -> None:
        console.print(f"{datetime.now(UTC):%H:%M:%S} {text} …")

    _, journal = measure_ingestion(folder, parts, plan, tell)
    _, usage = measure_reader(Job.JOINS.value, folder, parts, plan, marks=journal, tell=tell)
    marks = dict(zip(READERS, (journal, usage), strict=True))
    noted.write_text(json.dumps({job: asdict(of_job) for job, of_job in marks.items()}))
    return marks


def _measure(  # noqa: PLR0917
    name: str, folder: Path, parts: Parts, marks: Marks, executors: int, console: Console
) -> Measured:
    """What a job uses for the commits after the warm-up, which are all there at once."""
    read, writer = READS[name]
    recording = Recording(Folders(folder / writer).tables, read)
    place = folder / f"{name}-{executors}"
    shutil.rmtree(place, ignore_errors=True)
    with _own_database(place, parts, executors) as own:
        target = Folders(place).tables
        for version in range(max(1, marks.warm // 2)):
            recording.copy(version, target)
        with Application.running(name, place, own, _with_executors(executors, place)) as job:
            for version in range(max(1, marks.warm // 2), marks.warm + 1):
                job.wait_until(recording.copy(version, target))
            first, before, counted, began = job.position(), _used(job, own), job.usage(), time.monotonic()
            position = first
            for version in range(marks.warm + 1, marks.full + 1):
                position = recording.copy(version, target)
            job.wait_until(position)
            seconds, used = time.monotonic() - began, _used(job, own) - before
            batches = job.usage().batches - counted.batches
    found = Measured(name, executors, position - first, batches, seconds, used)
    console.print(f"{name}, {executors} executors: {found.rows:,} rows in {batches} batches, {seconds:.1f} s")
    return found


def _send(parts: Parts, events: int, console: Console) -> None:
    """Let the topic hold at least so many events."""
    if sum(_ends(parts).values()) < events:
        console.print(f"{datetime.now(UTC):%H:%M:%S} sending {events:,} events …")
        publish_catalog(parts)
        send(parts.kafka_bootstrap, records(events, "scale", datetime.now(UTC)))


def _ends(parts: Parts) -> dict[str, int]:
    return ends(parts.kafka_bootstrap, describe(parts.kafka_bootstrap, [EVENTS_TOPIC, *CatalogTopic]))


def _measure_ingestion(  # noqa: PLR0917
    name: str, folder: Path, parts: Parts, events: int, executors: int, console: Console
) -> Measured:
    """What ingestion uses for the events of the topic after the warm-up, which are all there at once."""
    place = folder / f"{name}-{executors}"
    shutil.rmtree(place, ignore_errors=True)
    with (
        _own_database(place, parts, executors, in_driver=name == IN_DRIVER) as own,
        Application.running("ingestion", place, own, _with_executors(executors, place)) as job,
    ):
        required = _ends(parts)
        job.wait_until(int(events * WARM_UP_SHARE))
        first, before, counted, began = job.position(), _used(job, own), job.usage(), time.monotonic()
        job.wait(lambda: job.positions.missing(required) == 0)
        seconds, used = time.monotonic() - began, _used(job, own) - before
        rows, batches = job.position() - first, job.usage().batches - counted.batches
    found = Measured(name, executors, rows, batches, seconds, used)
    console.print(f"{name}, {executors} executors: {found.rows:,} rows in {batches} batches, {seconds:.1f} s")
    return found


@contextmanager
def _own_database(place: Path, parts: Parts, executors: int, *, in_driver: bool = False) -> Iterator[Parts]:
    """A new database beside the same broker, because the position of billing is in it."""
    config = _settings(executors, in_driver=in_driver)
    with embedded_database(place / "postgres") as url:
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            declare(connection, config.jobs.billing.declared)
        pid = int((place / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])
        yield replace(parts, postgres_url=url, database_pid=pid, setting=Setting(config))


def _with_executors(count: int, place: Path) -> dict[str, str]:
    """Variables with which a driver starts executors of one core each, as processes of this machine."""
    if not count:
        return {}
    settings = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": f"{EXECUTOR_MIB}m",
        # Spark makes it itself only for drivers without executors, and on Kubernetes.
        "spark.authenticate.secret": secrets.token_hex(16),
    }
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    master = f"--master local-cluster[{count},1,{EXECUTOR_MIB}]"
    scratch = {"SPARK_WORKER_DIR": str(place / "executors")}
    return {"WEIR_SUBMITTED": "true", **scratch, "PYSPARK_SUBMIT_ARGS": f"{master} {given} pyspark-shell"}


def _used(job: Application, parts: Parts) -> Share:
    """CPU-seconds so far, by role."""
    found = dict.fromkeys(("driver", "driver_java", "executor_java", "workers"), 0.0)
    for process in tree(job.pid):
        try:
            found[_role(process, job.pid)] += own_cpu_seconds(process)
        except psutil.NoSuchProcess:
            continue
    return Share(**found, database=cpu_seconds(parts.database_pid))


def _role(process: psutil.Process, driver: int) -> str:
    command = " ".join(process.cmdline())
    if process.pid == driver:
        return "driver"
    if "pyspark.daemon" in command or "pyspark.worker" in command or "pyspark/daemon" in command:
        return "workers"
    return "executor_java" if "CoarseGrainedExecutorBackend" in command else "driver_java"


def table(job: str, found: list[Measured]) -> ConsoleTable:
    """CPU-seconds per million rows of what the job reads."""
    rows = f"rows of {READS[job][0].value}" if job in READS else "records"
    shown = ConsoleTable(title=f"{job}: CPU-seconds per million {rows}")
    for name in ("executors", "rows", "batches", "s", "all", *Share.__dataclass_fields__):
        shown.add_column(name.replace("_", " "), justify="right")
    for measured in found:
        share = measured.per_million
        counts = (measured.executors, f"{measured.rows:,}", measured.batches, f"{measured.seconds:.1f}")
        shown.add_row(*map(str, counts), *[f"{value:.2f}" for value in (share.total, *asdict(share).values())])
    return shown


def document(found: list[Measured], events: int) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "machine": machine(),
        "events": events,
        "measured": [
            {
                "job": case.job,
                "executors": case.executors,
                "rows": case.rows,
                "batches": case.batches,
                "seconds": round(case.seconds, 3),
                "cpu_seconds": {name: round(value, 3) for name, value in asdict(case.used).items()},
                "cpu_seconds_per_million_rows": {name: round(v, 3) for name, v in asdict(case.per_million).items()},
            }
            for case in found
        ],
    }


if __name__ == "__main__":
    typer.run(main)
