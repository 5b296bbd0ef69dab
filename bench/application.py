"""One application as it runs everywhere (`python -m jobs NAME`), in a process group of its own, and what it used."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import psycopg

from bench.parts import Parts, wait_for
from bench.processes import Below, cpu_seconds, own_cpu_seconds, resident_mib
from deployment.job_states import JobStates
from deployment.positions import Positions
from jobs.streams import Table
from laptop.folders import Folders
from laptop.jars import connector_jars
from laptop.launch import keep_config
from laptop.ports import LOOPBACK, free_port
from laptop.programs import job_environment

START_LIMIT_SECONDS = 600.0
STOP_LIMIT_SECONDS = 40.0
CATCH_UP_LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Usage:
    """What was used up to one moment, or between two: by the application and by the database; what was done with it."""

    cpu_seconds: float
    database_cpu_seconds: float
    batches: int
    records: int
    java_cpu_seconds: float
    """Of `cpu_seconds`, as what its workers used; the rest is the driver's."""
    worker_cpu_seconds: float

    def __sub__(self, before: Usage) -> Usage:
        return Usage(
            self.cpu_seconds - before.cpu_seconds,
            self.database_cpu_seconds - before.database_cpu_seconds,
            self.batches - before.batches,
            self.records - before.records,
            self.java_cpu_seconds - before.java_cpu_seconds,
            self.worker_cpu_seconds - before.worker_cpu_seconds,
        )


@dataclass(frozen=True)
class Start:
    """What it took until the application had passed its checks."""

    seconds: float
    cpu_seconds: float


class Application:
    """A running job, its tables under `folder`. `positions` tells how far it is."""

    def __init__(self, job: str, folder: Path, parts: Parts, process: subprocess.Popen[bytes], port: int) -> None:
        self.job = job
        self._parts = parts
        self._process = process
        self._metrics = f"http://{LOOPBACK}:{port}/metrics"
        self.positions = Positions(str(Folders(folder).tables), parts.postgres_url)
        self._log = Folders(folder).log(job)
        self.start = Start(0.0, 0.0)
        self._below = Below(process.pid)
        self._database: psycopg.Connection[Any] | None = None

    @classmethod
    @contextmanager
    def running(
        cls, job: str, folder: Path, parts: Parts, more: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[Application]:
        """Start it, wait until it works, and stop it after the block. Raises TimeoutError or RuntimeError.

        `more` are variables of its environment.
        """
        folders, port = Folders(folder), free_port()
        environment = job_environment(
            folders,
            kafka_bootstrap=parts.kafka_bootstrap,
            postgres_url=parts.postgres_url,
            jars=connector_jars(),
            metrics_port=port,
        )
        states = JobStates(parts.postgres_url)
        states.starting(job)
        keep_config(folders, parts.setting.config)
        log = folders.log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobs", job, "--config", str(folders.config(job))],
                env={**os.environ, **environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        application = cls(job, folder, parts, process, port)
        try:
            wait_for(
                f"{job} (see {log}) to start",
                lambda: application._is_alive() and states.is_working(job),
                START_LIMIT_SECONDS,
            )
            application.start = Start(time.monotonic() - began, cpu_seconds(process.pid))
            yield application
        finally:
            _stop(process)
            application.close()

    def close(self) -> None:
        """Leave the database."""
        if self._database is not None:
            self._database.close()

    def usage(self) -> Usage:
        """Everything used so far."""
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:
            text = answer.read().decode()
        java, workers = self._below.cpu_seconds()
        return Usage(
            own_cpu_seconds(psutil.Process(self._process.pid)) + java + workers,
            cpu_seconds(self._parts.database_pid),
            int(metric(text, "weir_batch_duration_seconds_count")),
            int(metric(text, "weir_batch_records_total")),
            java,
            workers,
        )

    @property
    def pid(self) -> int:
        """Its driver's process; all others are below it."""
        return self._process.pid

    def resident_mib(self) -> float:
        """Memory held now."""
        return resident_mib([self._process.pid])

    def position(self) -> int:
        """The next row of its input; for ingestion of its output."""
        match self.job:
            case "ingestion":
                return self.positions.next_lsn(Table.JOURNAL)
            case "joins":
                return self.positions.joined()
        return self._folded()

    def _folded(self) -> int:
        # By one connection: to connect for each look would be counted as the database's work for the application.
        if self._database is None:
            self._database = psycopg.connect(self._parts.postgres_url, autocommit=True)
        row = self._database.execute("SELECT next_position FROM positions WHERE job = %s", [self.job]).fetchone()
        return 1 if row is None else int(row[0])

    def wait_until(self, position: int) -> None:
        """Wait until it has come so far. Raises TimeoutError, or RuntimeError when it has ended."""
        self.wait(lambda: self.position() >= position)

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds. Raises TimeoutError, or RuntimeError when the job has ended."""
        wait_for(f"{self.job} to catch up", lambda: self._is_alive() and holds(), CATCH_UP_LIMIT_SECONDS)

    def _is_alive(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.job} ended with {self._process.returncode}; see {self._log}")
        self._below.look()
        return True


def metric(page: str, name: str) -> float:
    """The sum over all series of a metric on a Prometheus page; 0 without one."""
    series = re.compile(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", re.MULTILINE)
    return sum(float(value) for value in series.findall(page))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, and kill what is left of its process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_LIMIT_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
