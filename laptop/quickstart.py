"""`python -m laptop.quickstart broker|database|connect`: one of the laptop's servers alone in a container.

Broker and database are to try Weir out: one copy, one volume, no backup, not for production. Settings come from
`WEIR_DATA` (the folder), `WEIR_ADVERTISED` (how clients find the broker, host:port) and `WEIR_DATABASE_PASSWORD`.
`connect` captures the catalog of any database for any Kafka, those of `WEIR_POSTGRES_URL` and `WEIR_KAFKA_*`.
`wait` returns when the database answers, `captured` says whether the catalog's first snapshot is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import psycopg

from catalog import capture
from deployment.capture import is_captured, read_capture, refuse_without_log
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_access
from jobs.runtime.unreachable import NO_ADDRESS, database_sentence, place
from laptop import broker, connect, database
from laptop.broker import BrokerPorts
from laptop.folders import Folders
from laptop.jars import broker_jars, connect_jars

EVERYWHERE = "0.0.0.0"  # a pod's address is not known beforehand, and other pods are the clients
BROKER_PORT, CONTROLLER_PORT, DATABASE_PORT, CONNECT_PORT = 9092, 9093, 5432, 8083
READY_POLL_SECONDS = 0.5
WAIT_SECONDS = 120


def run_broker(environment: Mapping[str, str]) -> NoReturn:
    """Serve Kafka; `weir topics` makes the topics. Raises `CannotRun`."""
    folder = _folders(environment).broker
    ports = BrokerPorts(BROKER_PORT, CONTROLLER_PORT, EVERYWHERE, _needed(environment, "WEIR_ADVERTISED"))
    jars = broker_jars()
    broker.prepare(folder, jars, ports)
    command = broker.server_command(folder, jars)
    os.execv(command[0], command)


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
    server = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A container is stopped with SIGTERM, on which Postgres would wait for its clients to leave.
        signal.signal(number, lambda *_: server.send_signal(database.STOP_SIGNAL))
    while server.poll() is None and not database.ensure_database(folder, DATABASE_PORT):
        time.sleep(READY_POLL_SECONDS)
    return server.wait()


def run_connect(environment: Mapping[str, str]) -> NoReturn:
    """Capture the catalog, once it exists: a slot older than the schema cannot be read. Raises
    `CannotRun`.
    """
    url = _needed(environment, "WEIR_POSTGRES_URL")
    worker = connect.Worker(kafka_access(_needed(environment, "WEIR_KAFKA_BOOTSTRAP")), CONNECT_PORT)
    folder, jars = _folders(environment).connect, connect_jars()
    connect.prepare(folder, worker, capture.CONNECTOR, capture.connector(url, environment))
    wait_for_schema(url)
    refuse_without_log(url)
    command = connect.server_command(folder, jars, worker)
    os.execve(command[0], command, {**environment, capture.PASSWORD_VARIABLE: capture.password(url)})


def wait_for_schema(url: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Return when the database has Weir's schema; print what is missing, again whenever that changes."""
    printed = ""
    while sentence := _lacking(url):
        if sentence != printed:
            print(sentence, file=sys.stderr, flush=True)
        printed = sentence
        pause(READY_POLL_SECONDS)


def _lacking(url: str) -> str:
    try:
        read_capture(url)
    except psycopg.Error as problem:
        return database_sentence(problem, url) or f"Waiting for the schema that the migration makes: {problem}"
    return ""


def captured(environment: Mapping[str, str]) -> int:
    """0 when changes are followed."""
    return 0 if is_captured(_needed(environment, "WEIR_POSTGRES_URL")) else 1


def wait(environment: Mapping[str, str]) -> int:
    """Return when the database answers. Raises `CannotRun`."""
    url = _needed(environment, "WEIR_POSTGRES_URL")
    if place(url) is None:
        raise CannotRun(f"WEIR_POSTGRES_URL {NO_ADDRESS}.")
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError as problem:
            if time.monotonic() > deadline:
                sentence = database_sentence(problem, url)
                raise CannotRun(f"For {WAIT_SECONDS} s there was no usable database. {sentence}") from None
            time.sleep(READY_POLL_SECONDS)
        else:
            return 0


def _folders(environment: Mapping[str, str]) -> Folders:
    return Folders(Path(environment.get("WEIR_DATA", "/var/lib/weir")).resolve())


def _needed(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise CannotRun(f"The environment variable {name} is not set; the chart sets it for quickstart.")
    return environment[name]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The server's exit status; 1 when it cannot run, 2 for an unknown word."""
    words: dict[str, Callable[[Mapping[str, str]], int]] = {
        "broker": run_broker,
        "database": run_database,
        "connect": run_connect,
        "captured": captured,
        "wait": wait,
    }
    if len(arguments) != 1 or arguments[0] not in words:
        print(f"usage: python -m laptop.quickstart {'|'.join(words)}", file=sys.stderr)
        return 2
    try:
        return words[arguments[0]](environment)
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
