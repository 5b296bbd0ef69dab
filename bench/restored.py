"""`python -m bench.restored FOLDER --events 20000`: how long after a disaster the bills are what they were.

A stack as `weir up` starts it takes events, is backed up in the documented order (docs/how-to/restore.md), takes a
quarter as many more, and is stopped. Then it loses its database and tables, and its tables alone.
The clock of each runs from the loss until windows and sessions are equal to those before, row by row, and the journal
and usage have as many rows. A call does one part, so that none takes long: the next one goes on in the same FOLDER, and
the last one writes bench/results/.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from deltalake import DeltaTable

from bench.events import records
from bench.parts import send, wait_for
from bench.processes import cpu_seconds
from bench.report import RESULTS, machine
from bench.stack import apply_catalog, running, weir
from deployment.stack import Stack, running_stack
from jobs.streams import Table
from laptop.database import embedded_database, server_program
from laptop.folders import Folders
from metering.vocabulary import ALWAYS, Job

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 400.0
_wait_for = partial(wait_for, limit_seconds=PATIENCE_SECONDS, poll_seconds=POLL_SECONDS)
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
_SIZE = "SELECT pg_database_size(current_database())"
COUNTED = (Table.JOURNAL, Table.USAGE)


@dataclass(frozen=True)
class State:
    """What must be as before: `digests` of all windows and of all sessions, `rows` of the journal and of usage."""

    digests: list[str]
    rows: list[int]


@dataclass(frozen=True)
class Step:
    """`cpu_seconds`: of all processes of the stack, and of commands; null where drivers were killed meanwhile."""

    step: str
    seconds: float
    cpu_seconds: float | None


@dataclass(frozen=True)
class Recovery:
    """`seconds` from the loss until all was as before; rows that were lost are those counted before minus then."""

    lost: str
    seconds: float
    cpu_seconds: float | None
    steps: list[Step]
    journal_rows_lost: int
    usage_rows_lost: int


def main(
    folder: Annotated[Path, typer.Argument(help="Where the stack, its backup and what was measured are.")],
    events: Annotated[int, typer.Option(help="Records before the backup, and a quarter as many after.", min=1_000)],
) -> None:
    """Do the next part: meter and back up, or lose and recover something; the last writes bench/results/."""
    bench = _Bench(folder, events)
    state = folder / "state.json"
    if not state.exists():
        folder.mkdir(parents=True)
        state.write_text(json.dumps(bench.metered()))
        return
    document = json.loads(state.read_text())
    before = State(**document.pop("before"))
    parts = (bench.without_both, bench.without_tables)
    recovered = parts[len(document["recoveries"])](before)
    document["recoveries"].append(asdict(recovered))
    typer.echo(json.dumps(asdict(recovered), indent=2))
    state.write_text(json.dumps({"before": asdict(before), **document}))
    if len(document["recoveries"]) == len(parts):
        written = RESULTS / f"restored-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
        written.write_text(json.dumps({"machine": machine(), **document}, indent=2) + "\n")
        typer.echo(f"Written: {written}")


class _Bench:
    def __init__(self, folder: Path, events: int) -> None:
        self._data_dir, self._backup = folder / "weir", folder / "backup"
        self._folders = Folders(self._data_dir)
        self._events, self._runs = events, 0
        self._config = folder / "stack.json"
        self._options = ("--config", str(self._config), "--timeout", "540")

    def metered(self) -> dict[str, Any]:
        """A stack takes events and is backed up meanwhile: how it ends, and how large it is."""
        self._config.write_text(json.dumps(CONFIG))
        self._backup.mkdir()
        with running(self._data_dir, *self._options) as stack:
            apply_catalog(self._data_dir)
            self._send(stack, self._events)
            self._back_up_database(stack.postgres_url)
            with _stopped(stack):
                # What was made of something before what it was made of: here nothing moves meanwhile.
                shutil.copytree(self._folders.tables, self._backup / "tables")
            self._send(stack, self._events // 4)
            with psycopg.connect(stack.postgres_url) as database:
                (size,) = database.execute(_SIZE).fetchone() or (0,)
            return {
                "events_before_the_backup": self._events,
                "events_after_it": self._events // 4,
                "database_bytes": size,
                "dump_bytes": (self._backup / "weir.sql").stat().st_size,
                "tables_bytes": _bytes(self._folders.tables),
                "before": asdict(self._state(stack)),
                "recoveries": [],
            }

    def without_both(self, before: State) -> Recovery:
        """The database and the tables are lost."""
        clock = _Clock()
        self._restore_database()
        clock.ends("database restored from the dump")
        self._restore_tables()
        clock.ends("tables copied back")
        with running(self._data_dir, *self._options) as stack:
            clock.watch(stack)
            clock.ends("all processes started")
            return self._recovered("database and tables", stack, before, clock, "caught up")

    def without_tables(self, before: State) -> Recovery:
        """The tables are lost while the stack runs: `weir rebuild` needs one."""
        with running(self._data_dir, *self._options) as stack:
            jobs = (Job.BILLING, Job.SESSIONIZATION)
            refusals = {job: _refusals(stack, job) for job in jobs}
            clock = _Clock(stack)
            with _killed(stack):
                self._restore_tables()
            clock.ends("tables copied back")
            _wait_for("both to refuse", lambda: all(_refusals(stack, job) > refusals[job] for job in jobs))
            clock.ends("billing and sessionization refuse")
            _wait_for("ingestion and joins", lambda: self._has_rows(before))
            clock.ends("ingestion and joins caught up")
            for job in jobs:
                weir(self._data_dir, "rebuild", job, "--yes")
                clock.ends(f"{job} rebuilt")
            return self._recovered("tables", stack, before, clock, "both started again and caught up")

    def _recovered(self, lost: str, stack: Stack, before: State, clock: _Clock, step: str) -> Recovery:
        _wait_for("equal bills", lambda: self._state(stack).digests == before.digests)
        clock.ends(step)
        journal, usage = (was - now for was, now in zip(before.rows, self._rows(), strict=True))
        seconds, cpu_seconds = clock.totals()
        return Recovery(lost, seconds, cpu_seconds, clock.steps, journal, usage)

    def _restore_database(self) -> None:
        """Into a new server, which has another log than the one that was lost."""
        shutil.rmtree(self._folders.database / "data")
        with embedded_database(self._folders.database) as url:
            for file in ("roles.sql", "weir.sql"):
                _psql(url, self._backup / file)

    def _restore_tables(self) -> None:
        shutil.rmtree(self._folders.tables)
        shutil.copytree(self._backup / "tables", self._folders.tables)

    def _back_up_database(self, url: str) -> None:
        roles = _run(*server_program("pg_dumpall"), "--roles-only", "--no-role-passwords", "-d", url).splitlines()
        # The owner is there: who restores signs in as it.
        others = [line for line in roles if line.split()[2:3] != ["weir;"] and " ROLE weir " not in line]
        (self._backup / "roles.sql").write_text("\n".join(others))
        (self._backup / "weir.sql").write_text(_run(*server_program("pg_dump"), "-d", url))

    def _send(self, stack: Stack, count: int) -> None:
        """And wait until all of it is billed."""
        self._runs += 1
        send(stack.kafka_bootstrap, records(count, f"restored-{self._runs}", datetime.now(UTC), seed=self._runs))
        weir(self._data_dir, "drain", "--timeout", str(PATIENCE_SECONDS))

    def _state(self, stack: Stack) -> State:
        with psycopg.connect(stack.postgres_url) as database:
            digests = [str(row[0]) for query in (_BILLED, _SESSIONS) if (row := database.execute(query).fetchone())]
        return State(digests, self._rows())

    def _has_rows(self, before: State) -> bool:
        return all(now >= was for now, was in zip(self._rows(), before.rows, strict=True))

    def _rows(self) -> list[int]:
        return [DeltaTable(str(self._folders.tables / table)).count() for table in COUNTED]


class _Clock:
    """Seconds and CPU-seconds by step, from the loss on."""

    def __init__(self, stack: Stack | None = None) -> None:
        self._stack = stack
        self.steps: list[Step] = []
        self._ended, self._used = time.monotonic(), self._cpu_seconds()

    def watch(self, stack: Stack) -> None:
        """The stack that was started since the step before."""
        self._stack = stack

    def ends(self, step: str) -> None:
        """Note what has passed since the step before."""
        now, used = time.monotonic(), self._cpu_seconds()
        taken = round(used - self._used, 1)
        self.steps.append(Step(step, round(now - self._ended, 1), taken if taken >= 0 else None))
        self._ended, self._used = now, used

    def totals(self) -> tuple[float, float | None]:
        """Seconds and CPU-seconds of all steps."""
        used = [step.cpu_seconds for step in self.steps]
        total = None if None in used else round(sum(filter(None, used)), 1)
        return round(sum(step.seconds for step in self.steps), 1), total

    def _cpu_seconds(self) -> float:
        """This process with its ended commands, and the stack."""
        return sum(os.times()[:4]) + (0.0 if self._stack is None else cpu_seconds(self._stack.supervisor.pid))


@contextmanager
def _stopped(stack: Stack) -> Iterator[list[int]]:
    """Drivers write nothing within the block, and go on after it; gives their process groups."""
    found = running_stack(stack.data_dir)
    groups = [driver.pid for name in ALWAYS if (driver := found.process(name).process) is not None]
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
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


def _refusals(stack: Stack, job: Job) -> int:
    with psycopg.connect(stack.postgres_url) as database:
        (count,) = database.execute(_REFUSALS, [job.value]).fetchone() or (0,)
    return int(count)


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
