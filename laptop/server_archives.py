"""Archives of the classes that the broker and Kafka Connect load (class data sharing): both start with less CPU.

Made once by `make setup`, in a short run of both that captures an empty catalog; without them they start, only slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from catalog import capture
from deployment import topics
from deployment.capture import is_captured
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_access
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.schema import migrate
from laptop import broker, connect
from laptop.broker import BrokerPorts
from laptop.database import embedded_database
from laptop.jars import broker_jars, connect_jars
from laptop.java import QUIET, archive_of, find_java
from laptop.ports import free_ports

LIMIT_SECONDS = 120.0
STOP_SECONDS = 60.0
"""For a clean end, at which Java writes the archive."""


def make_archives() -> list[Path]:
    """Make both archives unless they are there. Raises `CannotRun` where a server does not start, or does not end."""
    archives = {"broker": archive_of("broker", broker_jars()), "connect": archive_of("connect", connect_jars())}
    if all(archive.exists() for archive in archives.values()):
        return [*archives.values()]
    place = archives["broker"].parent
    place.mkdir(parents=True, exist_ok=True)
    for name in archives:
        for outdated in place.glob(f"{name}-*.jsa"):
            outdated.unlink()
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        # Postgres has a user of its own where root starts it.
        Path(scratch).chmod(0o711)
        fresh = {name: Path(scratch, archive.name) for name, archive in archives.items()}
        _run_both(Path(scratch), fresh)
        if not all(file.exists() for file in fresh.values()):
            raise CannotRun("Java has not written them at its end.")
        for name, archive in archives.items():
            fresh[name].replace(archive)
    return [*archives.values()]


def _run_both(folder: Path, archives: Mapping[str, Path]) -> None:
    clients, controller, worker_port = free_ports(3)
    ports = BrokerPorts(clients, controller)
    broker.prepare(folder / "kafka", broker_jars(), ports)
    serving = archiving(broker.server_command(folder / "kafka", broker_jars()), archives["broker"])
    with embedded_database(folder / "postgres") as address, _running(serving, folder / "broker.log") as server:
        url = in_schema(address)
        migrate(url)
        _wait(lambda: topics.answers(ports.bootstrap), server, folder / "broker.log")
        topics.ensure_topics(ports.bootstrap)
        worker = connect.Worker(kafka_access(ports.bootstrap), worker_port)
        connect.prepare(folder / "connect", worker, capture.CONNECTOR, capture.connector(url, {}))
        capturing = archiving(connect.server_command(folder / "connect", connect_jars(), worker), archives["connect"])
        password = {capture.PASSWORD_VARIABLE: capture.password(url)}
        with _running(capturing, folder / "connect.log", password) as process:
            _wait(lambda: is_captured(url), process, folder / "connect.log")


def archiving(command: Sequence[str], archive: Path) -> list[str]:
    """The command line whose Java writes an archive when it ends."""
    behind = list(command).index(str(find_java())) + 1
    return [*command[:behind], f"-XX:ArchiveClassesAtExit={archive}", *QUIET, *command[behind:]]


@contextmanager
def _running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, ended cleanly after the block. Raises CannotRun where it does not end."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
    try:
        yield process
        process.terminate()
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"It did not end within {STOP_SECONDS:.0f} s: {_end_of(log)}") from None
    finally:
        process.kill()
        process.wait()


def _wait(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise CannotRun(f"It was not ready within {LIMIT_SECONDS:.0f} s: {_end_of(log)}")
        time.sleep(0.2)


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


if __name__ == "__main__":
    try:
        for made in make_archives():
            print(f"class archive: {made}")
    except CannotRun as error:
        # Not an error: everything works without them.
        print(f"Going on without class archives of the broker and Kafka Connect. {error}", file=sys.stderr)
