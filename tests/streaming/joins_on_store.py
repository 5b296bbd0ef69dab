"""joins as a process whose tables are in an object store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable

from jobs.streams import Table
from laptop.class_archive import submit_arguments
from metering.vocabulary import EventType
from tests.streaming.journals import Journal, event, heartbeat

LIMIT_SECONDS = 120


class JoinsOnStore:
    """Starts the application, which finds the store by variables of this process, and reads what it has decided."""

    def __init__(self, tables: str, variables: dict[str, str], log: Path) -> None:
        self._tables, self._variables, self._log = tables, variables, log
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """One more process."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobs", "joins"],
                env={**os.environ, **self._variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def wait_for(self, expected: dict[str, list[str]], process: subprocess.Popen[bytes]) -> None:
        """Until these are the outcomes of each request; fails when the process ends or after LIMIT_SECONDS."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while (found := self._outcomes()) != expected:
            assert process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{found}\n{self._log.read_text()[-3000:]}"
            time.sleep(0.5)

    def _outcomes(self) -> dict[str, list[str]]:
        usage = f"{self._tables}/{Table.USAGE}"
        if not DeltaTable.is_deltatable(usage):
            return {}
        found: dict[str, list[str]] = {}
        for row in DeltaTable(usage).to_pyarrow_table().to_pylist():
            found.setdefault(row["request_id"], []).append(row["outcome"])
        return found


@contextmanager
def joins_on_store(tables: str, database: str, jars: Path, folder: Path) -> Iterator[JoinsOnStore]:
    """With tables at this address; what runs at the end is killed."""
    variables = {
        "WEIR_KAFKA_BOOTSTRAP": "none:9092",  # joins reads no topic
        "WEIR_POSTGRES_URL": database,
        "WEIR_TABLES": tables,
        "WEIR_CHECKPOINTS": str(folder / "checkpoints"),
        "WEIR_JARS": str(jars),
        **submit_arguments(),
    }
    joins = JoinsOnStore(tables, variables, folder / "joins.log")
    try:
        yield joins
    finally:
        for process in joins.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def gives_each_outcome_once_though_killed(joins: JoinsOnStore, journal: Journal) -> None:
    """The application reads the journal from the store, writes usage there, is killed, and goes on."""
    journal.commit([event(kind, f"r{n}", n) for n in range(20) for kind in (EventType.REQUEST, EventType.COMPLETION)])
    expected = {f"r{n}": ["matched"] for n in range(20)}

    first = joins.start()
    joins.wait_for(expected, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    journal.commit([event(EventType.USAGE, "r20", 20), event(EventType.REQUEST, "r21", 21), heartbeat(1000)])

    second = joins.start()
    joins.wait_for({**expected, "r20": ["matched"], "r21": ["abandoned"]}, second)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0
