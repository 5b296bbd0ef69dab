"""The real broker and database that the applications are measured with, for as long as a block lasts."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from confluent_kafka import Producer

from bench.events import Record, catalog
from catalog.file import parse_catalog
from catalog.publishing import publish
from catalog.store import store
from deployment import topics
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate
from jobs.stack import StackConfig
from laptop import broker
from laptop.broker import BrokerPorts
from laptop.database import embedded_database
from laptop.jars import broker_jars
from laptop.ports import free_ports
from metering.vocabulary import Job

START_LIMIT_SECONDS = 90.0


@dataclass(frozen=True)
class Setting:
    """The applications' configuration, meters beside the default four (which are priced, and which reported), and
    under which conditions input has prices of its own.
    """

    config: StackConfig = field(default_factory=StackConfig)
    priced: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    conditions: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Parts:
    """A running broker and database. `database_pid` is the server's own process; its sessions are its children."""

    kafka_bootstrap: str
    postgres_url: str
    database_pid: int
    setting: Setting


@contextmanager
def running_parts(folder: Path, setting: Setting | None = None) -> Iterator[Parts]:
    """Broker, topics, database and schema under `folder`. Raises `CannotRun` when one does not start."""
    with running_broker(folder / "kafka") as bootstrap, embedded_database(folder / "postgres") as url:
        migrate(url)
        setting = setting or Setting()
        with psycopg.connect(url, autocommit=True) as connection:
            # As applications do at their start: a catalog prices what is declared, under conditions that are listed.
            declare(connection, setting.config.jobs.billing.declared)
        Ownership.take(Job.JOINS.value, url, setting.config.jobs.joins.model_dump(mode="json")).close()
        yield Parts(bootstrap, url, database_pid(folder / "postgres"), setting)


def database_pid(folder: Path) -> int:
    """The process of the server whose data are there."""
    return int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """A broker with Weir's topics; gives its address."""
    jars, (clients, controller) = broker_jars(), free_ports(2)
    ports = BrokerPorts(clients, controller)
    broker.prepare(folder, jars, ports)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(broker.server_command(folder, jars), stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for("the broker", lambda: topics.answers(ports.bootstrap), START_LIMIT_SECONDS)
        topics.ensure_topics(ports.bootstrap)
        yield ports.bootstrap
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_for(what: str, holds: Callable[[], bool], limit_seconds: float, poll_seconds: float = 0.1) -> None:
    """Ask until it holds. Raises TimeoutError with `what` after the limit."""
    deadline = time.monotonic() + limit_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_seconds:.0f} s")
        time.sleep(poll_seconds)


def publish_catalog(parts: Parts) -> None:
    """Put the catalog that prices the traffic where ingestion reads it."""
    file = json.dumps(catalog(parts.setting.priced, parts.setting.conditions))
    publish(parts.kafka_bootstrap, store(parts.postgres_url, parse_catalog(file)))


def send(bootstrap: str, records: Iterator[Record], topic: str = "events") -> None:
    """Append the records, as fast as the broker takes them, and wait for all of them."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 256 << 10,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 500_000,
        }
    )
    for record in records:
        while True:
            try:
                producer.produce(topic, record.value, record.key)
                break
            except BufferError:
                producer.poll(0.05)
    while producer.flush(1.0):
        pass
