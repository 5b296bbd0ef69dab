"""`python -m bench.restored`: how long after a disaster of docs/how-to/restore.md the bills are what they were.

A stack as `weir up` starts it takes events, is backed up, and takes more. Then the database is restored from a dump
that is older than the tables; the tables from a copy that is older than the database; and usage loses its last
commits. The clock runs from the loss until windows and sessions are equal to those before, row by row.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from confluent_kafka import Producer
from deltalake import DeltaTable

from bench.events import records
from bench.report import RESULTS, machine
from bench.stack import apply_catalog, running, weir
from deployment.stack import Stack, running_stack
from jobs.streams import EVENTS_TOPIC, Table
from laptop.database import embedded_database, server_program
from laptop.folders import Folders
from metering.vocabulary import ALWAYS, Job

LOST_COMMITS = 3
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 600.0
# Pairs that are cut at the end of a run must not time out while it is measured.
CONFIG = {"jobs": {"joins": {"completion_timeout_seconds": 21_600}, "billing": {"grace_seconds": 21_600}}}
_BILLED = """
SELECT md5(string_agg(billed::text, E'\n' ORDER BY billed::text)) FROM (
    SELECT window_start, account, model, meter, currency, price_version, unit_price, sum(quantity)
    FROM usage_windows GROUP BY 1, 2, 3, 4, 5, 6, 7
) AS billed
"""
_SESSIONS = """
SELECT md5(string_agg(active::text, E'\n' ORDER BY active::text)) FROM (
    SELECT account, user_id, session_start, session_end, events FROM sessions WHERE retracted_at IS NULL
) AS active
"""
_REFUSALS = "SELECT count(*) FROM exits WHERE job = %s AND how = 'refused'"


@dataclass(frozen=True)
class Recovery:
    """From the loss: `copied_seconds` until the copies were in place, `equal_seconds` until all was as before."""

    disaster: str
    lost: str
    copied_seconds: float
    equal_seconds: float


def main(
    events: Annotated[int, typer.Option(help="Records before the backup, and a quarter as many after.", min=1_000)],
) -> None:
    """Measure the three disasters one after another, and write them to bench/results/."""
    with tempfile.TemporaryDirectory(prefix="weir-restored-") as scratch:
        bench = _Bench(Path(scratch), events)
        recoveries = bench.run()
    written = RESULTS / f"restored-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    document = {
        "machine": machine(),
        "events_before": events,
        "events_after": events // 4,
        **bench.sizes,
        "recoveries": [asdict(recovery) for recovery in recoveries],
    }
    written.write_text(json.dumps(document, indent=2) + "\n")
    typer.echo(written.read_text())


class _Bench:
    def __init__(self, scratch: Path, events: int) -> None:
        self._data_dir, self._backup = scratch / "weir", scratch / "backup"
        self._folders = Folders(self._data_dir)
        self._events, self._runs = events, 0
        self._rows: dict[Table, int] = {}
        self._refusals: dict[Job, int] = {}
        self._options = ("--config", str(scratch / "stack.json"))
        (scratch / "stack.json").write_text(json.dumps(CONFIG))
        self._backup.mkdir()
        self.sizes: dict[str, int] = {}

    def run(self) -> list[Recovery]:
        with running(self._data_dir, *self._options) as stack:
            apply_catalog(self._data_dir)
            self._send(stack, self._events)
            self._back_up_database(stack)
            with _stopped(stack):
                shutil.copytree(self._folders.tables, self._backup / "tables")
            self._send(stack, self._events // 4)
            before = _state(stack)
            self._rows = {table: _rows(self._folders.tables / table) for table in (Table.JOURNAL, Table.USAGE)}
            with psycopg.connect(stack.postgres_url) as database:
                (size,) = database.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
        self.sizes = {"database_bytes": size, "tables_bytes": _bytes(self._folders.tables)}
        recoveries = [self._older_database(before)]
        typer.echo(recoveries[-1], err=True)
        with running(self._data_dir, *self._options) as stack:
            for recover in (self._older_tables, self._lost_commits):
                recoveries.append(recover(stack, before))
                typer.echo(recoveries[-1], err=True)
        return recoveries

    def _older_database(self, before: list[str]) -> Recovery:
        shutil.move(self._folders.database / "data", self._backup / "lost")
        clock = _Clock()
        with embedded_database(self._folders.database) as url:
            for file in ("roles.sql", "weir.sql"):
                _psql(url, self._backup / file)
        copied = clock.seconds()
        with running(self._data_dir, *self._options) as stack:
            _wait_until(lambda: _state(stack) == before, "the bills being equal")
            equal = clock.seconds()
        return Recovery("Postgres older than the tables", f"{self._events // 4} records", copied, equal)

    def _older_tables(self, stack: Stack, before: list[str]) -> Recovery:
        clock = _Clock()
        with _killed(stack):
            shutil.rmtree(self._folders.tables)
            shutil.copytree(self._backup / "tables", self._folders.tables)
            copied = clock.seconds()
        self._rebuild(stack, (Job.BILLING, Job.SESSIONIZATION))
        _wait_until(lambda: _state(stack) == before, "the bills being equal")
        return Recovery("tables older than Postgres", f"{self._events // 4} records", copied, clock.seconds())

    def _lost_commits(self, stack: Stack, before: list[str]) -> Recovery:
        clock = _Clock()
        with _killed(stack):
            usage = self._folders.tables / Table.USAGE
            newest = DeltaTable(str(usage)).version()
            for version in range(newest - LOST_COMMITS + 1, newest + 1):
                for file in (usage / "_delta_log").glob(f"{version:020d}.*"):
                    file.unlink()
            (usage / "_delta_log/_last_checkpoint").unlink(missing_ok=True)
            copied = clock.seconds()
        self._rebuild(stack, (Job.BILLING,))
        _wait_until(lambda: _state(stack) == before, "the bills being equal")
        lost = f"the last {LOST_COMMITS} of {newest + 1} commits of usage"
        return Recovery("usage lost its last commits", lost, copied, clock.seconds())

    def _rebuild(self, stack: Stack, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            _wait_until(partial(_refused, stack, job, self._refusals.get(job, 0)), f"{job} refusing")
            self._refusals[job] = _refusals(stack, job)
        _wait_until(self._has_all_rows, "ingestion and joins catching up")
        for job in jobs:
            weir(self._data_dir, "rebuild", job, "--yes")

    def _has_all_rows(self) -> bool:
        return all(_rows(self._folders.tables / table) >= rows for table, rows in self._rows.items())

    def _send(self, stack: Stack, count: int) -> None:
        producer = Producer({"bootstrap.servers": stack.kafka_bootstrap, "linger.ms": 20})
        self._runs += 1
        for record in records(count, f"restored-{self._runs}", datetime.now(UTC), seed=self._runs):
            while True:
                try:
                    producer.produce(EVENTS_TOPIC, record.value, record.key)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)
        weir(self._data_dir, "drain", "--timeout", str(PATIENCE_SECONDS))

    def _back_up_database(self, stack: Stack) -> None:
        url = stack.postgres_url
        roles = _run(*server_program("pg_dumpall"), "--roles-only", "--no-role-passwords", "-d", url).splitlines()
        # The owner is there: who restores signs in as it.
        others = [line for line in roles if line.split()[2:3] != ["weir;"] and " ROLE weir " not in line]
        (self._backup / "roles.sql").write_text("\n".join(others))
        (self._backup / "weir.sql").write_text(_run(*server_program("pg_dump"), "-d", url))


class _Clock:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return round(time.monotonic() - self._began, 1)


@contextmanager
def _stopped(stack: Stack) -> Iterator[list[int]]:
    """Drivers write nothing within the block, and go on after it; gives their process groups."""
    found = running_stack(stack.data_dir)
    groups = [driver.pid for name in ALWAYS if (driver := found.process(name).process) is not None]
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    time.sleep(POLL_SECONDS)
    try:
        yield groups
    finally:
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)


@contextmanager
def _killed(stack: Stack) -> Iterator[None]:
    """Drivers stand still within the block and are killed at its end; the supervisor starts them again."""
    with _stopped(stack) as groups:
        yield
        for group in groups:
            os.killpg(group, signal.SIGKILL)


def _state(stack: Stack) -> list[str]:
    """A digest of all windows, and of all sessions."""
    with psycopg.connect(stack.postgres_url) as database:
        return [str(row[0]) for query in (_BILLED, _SESSIONS) if (row := database.execute(query).fetchone())]


def _refused(stack: Stack, job: Job, before: int) -> bool:
    return _refusals(stack, job) > before


def _refusals(stack: Stack, job: Job) -> int:
    with psycopg.connect(stack.postgres_url) as database:
        (count,) = database.execute(_REFUSALS, [job.value]).fetchone() or (0,)
    return int(count)


def _wait_until(happens: Callable[[], bool], what: str) -> None:
    """Raises TimeoutError after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_SECONDS:g} s for {what}")
        time.sleep(POLL_SECONDS)


def _rows(table: Path) -> int:
    return DeltaTable(str(table)).count()


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _psql(url: str, file: Path) -> None:
    with file.open() as statements:
        command = [*server_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", url]
        subprocess.run(command, stdin=statements, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    typer.run(main)
