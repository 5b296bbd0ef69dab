"""`python -m local.quickstart broker|database`: the laptop's broker or database alone in a container, to try Weir out.

One copy, one volume, no backup: not for production. Settings come from `WEIR_DATA` (the folder), `WEIR_ADVERTISED`
(how clients find the broker, host:port) and `WEIR_DATABASE_PASSWORD`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from local import broker, database
from local.broker import BrokerPorts
from local.errors import CannotRun
from local.folders import Folders
from local.jars import broker_jars

EVERYWHERE = "0.0.0.0"  # a pod's address is not known beforehand, and other pods are the clients
BROKER_PORT, CONTROLLER_PORT, DATABASE_PORT = 9092, 9093, 5432
READY_POLL_SECONDS = 0.5


def run_broker(environment: Mapping[str, str]) -> int:
    """Serve Kafka, and make the topics once it answers. Raises `CannotRun`."""
    folder = _folders(environment).broker
    ports = BrokerPorts(BROKER_PORT, CONTROLLER_PORT, EVERYWHERE, _needed(environment, "WEIR_ADVERTISED"))
    jars = broker_jars()
    broker.prepare(folder, jars, ports)

    def has_topics() -> bool:
        if not broker.answers(ports.bootstrap):
            return False
        broker.ensure_topics(ports.bootstrap)
        return True

    return _serve(broker.server_command(folder, jars), signal.SIGTERM, has_topics)


def run_database(environment: Mapping[str, str]) -> int:
    """Serve Postgres with the environment's password, whichever the volume had before. Raises `CannotRun`."""
    folder = _folders(environment).database
    password = _needed(environment, "WEIR_DATABASE_PASSWORD")
    database.prepare(folder)
    database.set_password(folder, password)
    access = folder / "access.conf"
    access.write_text("host all all all scram-sha-256\n", encoding="ascii")
    settings = {"listen_addresses": "*", "hba_file": str(access)}
    command = database.server_command(folder, DATABASE_PORT, settings)
    return _serve(command, database.STOP_SIGNAL, lambda: database.ensure_database(folder, DATABASE_PORT))


def _serve(command: Sequence[str], stop_signal: signal.Signals, finish: Callable[[], bool]) -> int:
    """Run a server until it ends; `finish` is called until it says that nothing is left to prepare.

    A container is stopped with SIGTERM, on which Postgres would wait for its clients: each gets its own signal.
    """
    server = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.send_signal(stop_signal))
    try:
        while server.poll() is None and not finish():
            time.sleep(READY_POLL_SECONDS)
    except CannotRun:
        server.send_signal(stop_signal)
        server.wait()
        raise
    return server.wait()


def _folders(environment: Mapping[str, str]) -> Folders:
    return Folders(Path(environment.get("WEIR_DATA", "/var/lib/weir")).resolve())


def _needed(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise CannotRun(f"{name} is not set.")
    return environment[name]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The server's exit status; 1 when it cannot run, 2 for a word that is neither."""
    servers = {"broker": run_broker, "database": run_database}
    if len(arguments) != 1 or arguments[0] not in servers:
        print("usage: python -m local.quickstart broker|database", file=sys.stderr)
        return 2
    try:
        return servers[arguments[0]](environment)
    except CannotRun as obstacle:
        print(obstacle, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
