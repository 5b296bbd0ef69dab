"""Each application alone: CPU-seconds per million events when warm, and CPU-milliseconds of a near-empty batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from bench.application import Application, Start, Usage
from bench.events import Record, one_pair, records
from bench.parts import Parts, publish_catalog, send
from bench.recording import Recording
from deployment.positions import describe, ends
from jobs.streams import EVENTS_TOPIC, CatalogTopic, Table
from laptop.folders import Folders

READS = {
    "sessionization": (Table.JOURNAL, "ingestion"),
    "joins": (Table.JOURNAL, "ingestion"),
    "billing": (Table.USAGE, "joins"),
    "analytics": (Table.USAGE, "joins"),
}
"""What an application reads, and which one wrote it."""
LOOKS_UP = {"analytics": (Table.JOURNAL, "ingestion")}
"""What an application looks up rows of beside that: it has all of it from the start."""
TWO_VIEWS = {
    name: {
        "of": "outcomes",
        "by": by,
        "measures": {
            "requests": "count",
            "errors": {"count": {"where": {"status": ["error"]}}},
            "users": {"distinct": "user_id"},
            "latency_ms": {"percentiles": "latency_ms"},
            "tokens": {"sum": "output_tokens"},
        },
    }
    for name, by in (("model_health", ["model", "region"]), ("accounts", ["account", "model"]))
}
"""What analytics is measured with: the view of the guide, and one with fifty times its keys."""
IDLE_INTERVAL_SECONDS = 5.0
PACED_TOGETHER = 100
WORKER_ENDS_AFTER_BATCHES = 16

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much is measured: records sent before and while it counts, and near-empty batches of each kind."""

    warm_up: int
    events: int
    idle_batches: int
    rate: int | None = None
    """Measured events a second, from the topic to each table; without it ingestion gets them as fast as it takes them,
    and a reader the next commit when it has taken the one before."""

    @property
    def seconds(self) -> float:
        """How long the measured events come."""
        return self.events / self.rate if self.rate else 0.0


@dataclass(frozen=True)
class Marks:
    """Versions of a recorded table: after the warm-up, after the events, after half of the near-empty batches."""

    warm: int
    full: int
    idle: int


@dataclass(frozen=True)
class Measured:
    """What one application used for `events` records sent, and for near-empty batches."""

    job: str
    start: Start
    events: int
    full: Usage
    idle: Usage
    resident_mib: float

    @property
    def cpu_seconds_per_million(self) -> float:
        """Per million events sent to Kafka, of which this application may read only a part."""
        return self.full.cpu_seconds / self.events * 1e6

    @property
    def cpu_seconds_per_million_read(self) -> float:
        """Per million rows that this application read."""
        return self.full.cpu_seconds / max(1, self.full.records) * 1e6

    @property
    def database_cpu_seconds_per_million(self) -> float:
        """What the database used meanwhile, per million events sent."""
        return self.full.database_cpu_seconds / self.events * 1e6

    @property
    def events_per_batch(self) -> float:
        """Events sent for each of its batches."""
        return self.events / max(1, self.full.batches)

    @property
    def rows_per_batch(self) -> float:
        """Rows that it read in each."""
        return self.full.records / max(1, self.full.batches)

    @property
    def cpu_ms_per_batch(self) -> float:
        """What it and the database used, for each."""
        return (self.full.cpu_seconds + self.full.database_cpu_seconds) / max(1, self.full.batches) * 1e3

    @property
    def java_cpu_seconds_per_million(self) -> float:
        """The part of its Java in `cpu_seconds_per_million`."""
        return self.full.java_cpu_seconds / self.events * 1e6

    @property
    def worker_cpu_seconds_per_million(self) -> float:
        """That of its workers."""
        return self.full.worker_cpu_seconds / self.events * 1e6

    @property
    def driver_cpu_seconds_per_million(self) -> float:
        """The rest."""
        return self.cpu_seconds_per_million - self.java_cpu_seconds_per_million - self.worker_cpu_seconds_per_million

    @property
    def cpu_ms_per_idle_batch(self) -> float:
        """Everything used in the quiet minute, divided by its batches."""
        return self.idle.cpu_seconds / max(1, self.idle.batches) * 1e3


def measure_ingestion(folders: Path, parts: Parts, plan: Plan, tell: Tell) -> tuple[Measured, Marks]:
    """Feed the topic and measure ingestion; its journal stays under `folders`."""
    folder = folders / "ingestion"
    publish_catalog(parts)
    tell(f"sending {plan.warm_up:,} events to warm up")
    send(parts.kafka_bootstrap, records(plan.warm_up, "warm", datetime.now(UTC), reports=parts.setting.reports))
    with Application.running("ingestion", folder, parts) as job:
        tell("warming up")
        _wait_until_journalled(job, parts)
        warm, before = _version(folder, Table.JOURNAL), job.usage()
        tell(f"measuring {plan.events:,} events")
        send(
            parts.kafka_bootstrap,
            paced(records(plan.events, "full", datetime.now(UTC), seed=2, reports=parts.setting.reports), plan.rate),
        )
        _wait_until_journalled(job, parts)
        full, after = _version(folder, Table.JOURNAL), job.usage()
        tell("near-empty batches, warming up")
        # Until Spark has ended the Python worker that had nothing to do for a minute: what it used is counted no more.
        _trickle(parts, plan.idle_batches and plan.idle_batches + WORKER_ENDS_AFTER_BATCHES, "idle1")
        idle, quiet = _version(folder, Table.JOURNAL), job.usage()
        tell("measuring near-empty batches")
        _trickle(parts, plan.idle_batches, "idle2")
        spent = job.usage() - quiet
        measured = Measured("ingestion", job.start, plan.events, after - before, spent, job.resident_mib())
    return measured, Marks(warm, full, idle)


def measure_reader(
    name: str, folders: Path, parts: Parts, plan: Plan, *, marks: Marks, tell: Tell
) -> tuple[Measured, Marks]:
    """Let the table that the job reads grow as it was recorded, commit by commit, and measure the job alone.

    `marks` are of that table; those that are returned are of the table that the job writes.
    """
    table, writer = READS[name]
    folder = folders / name
    recording = Recording(Folders(folders / writer).tables, table)
    target = Folders(folder).tables
    first_streamed = max(1, (marks.warm + 1) // 2)
    for version in range(first_streamed):
        recording.copy(version, target)
    if name in LOOKS_UP:
        looked_up, its_writer = LOOKS_UP[name]
        beside = Recording(Folders(folders / its_writer).tables, looked_up)
        for version in range(beside.versions):
            beside.copy(version, target)
    with Application.running(name, folder, parts) as job:
        tell("warming up")
        for version in range(first_streamed, marks.warm + 1):
            job.wait_until(recording.copy(version, target))
        warm, before = _version(folder, Table.USAGE), job.usage()
        tell(f"measuring {plan.events:,} events")
        _grow(job, recording, target, marks, plan)
        full, after = _version(folder, Table.USAGE), job.usage()
        tell("near-empty batches, warming up")
        _replay(job, recording, target, range(marks.full + 1, marks.idle + 1))
        idle, quiet = _version(folder, Table.USAGE), job.usage()
        tell("measuring near-empty batches")
        _replay(job, recording, target, range(marks.idle + 1, recording.versions))
        spent = job.usage() - quiet
        measured = Measured(name, job.start, plan.events, after - before, spent, job.resident_mib())
    return measured, Marks(warm, full, idle)


def paced(events: Iterator[Record], rate: int | None) -> Iterator[Record]:
    """The same, so many a second at most."""
    began = time.monotonic()
    for number, event in enumerate(events):
        if rate and number % PACED_TOGETHER == 0:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield event


def _grow(job: Application, recording: Recording, target: Path, marks: Marks, plan: Plan) -> None:
    """Let the measured commits come: each when the job has taken the one before, or each at its time."""
    versions = range(marks.warm + 1, marks.full + 1)
    if plan.rate is None:
        for version in versions:
            job.wait_until(recording.copy(version, target))
        return
    began, first = time.monotonic(), recording.next_lsn(marks.warm)
    seconds_per_row = plan.seconds / (recording.next_lsn(marks.full) - first)
    for version in versions:
        due = began + seconds_per_row * (recording.next_lsn(version) - first)
        job.wait(partial(_is_past, due))
        recording.copy(version, target)
    job.wait_until(recording.next_lsn(marks.full))


def _is_past(monotonic: float) -> bool:
    return time.monotonic() >= monotonic


def _version(folder: Path, table: Table) -> int:
    """The version of a table that the job writes; -1 when it writes none."""
    path = str(Folders(folder).tables / table)
    return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else -1


def _wait_until_journalled(job: Application, parts: Parts) -> None:
    """Wait until the journal has all that the topics hold now."""
    required = ends(parts.kafka_bootstrap, describe(parts.kafka_bootstrap, [EVENTS_TOPIC, *CatalogTopic]))
    job.wait(lambda: job.positions.missing(required) == 0)


def _trickle(parts: Parts, batches: int, run: str) -> None:
    """One request with its completion at each interval: with the heartbeats all that there is."""
    for number in range(batches):
        due = time.monotonic() + IDLE_INTERVAL_SECONDS
        send(parts.kafka_bootstrap, one_pair(f"{run}-{number}", datetime.now(UTC)))
        time.sleep(max(0.0, due - time.monotonic()))


def _replay(job: Application, recording: Recording, target: Path, versions: range) -> None:
    for version in versions:
        due = time.monotonic() + IDLE_INTERVAL_SECONDS
        position = recording.copy(version, target)
        time.sleep(max(0.0, due - time.monotonic()))
        job.wait_until(position)
