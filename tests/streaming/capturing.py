"""Broker, database and Kafka Connect with Debezium themselves, each to be killed; and what joins would make of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from catalog import capture
from deployment.capture import read_capture
from deployment.processes import STACK_VARIABLE, ProcessId, kill_session
from jobs.joins.catalog import TABLE_OF, without_repeats
from jobs.journal.catalog_changes import parse_change
from jobs.journal.catalog_problems import change_problem
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.postgres.schema import migrate
from jobs.streams import SCHEMAS, CatalogTopic, Table
from laptop import connect, database
from laptop.jars import connect_jars
from laptop.ports import free_ports
from tests.streaming.brokers import running_broker
from tests.waiting import wait_until

CAPTURE_SECONDS = 150
_IN_SESSION = "tests/streaming/capturing"


@dataclass(frozen=True)
class Told:
    """A record of a catalog topic, in the order of the broker's stamps."""

    topic: str
    key: bytes | None
    value: bytes | None
    place: tuple[int, str, int, int]


@dataclass
class Chain:
    """What stands between an edit by SQL and the journal."""

    folder: Path
    bootstrap: str
    url: str
    database_port: int
    worker: connect.Worker
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    problems: set[str] = field(default_factory=set)
    """What a test has made wrong with records, which are rejected then."""

    def start_database(self) -> None:
        """Start it, and wait until it answers."""
        self.start("database", database.server_command(self.folder / "postgres", self.database_port))
        wait_until(lambda: database.ensure_database(self.folder / "postgres", self.database_port), "Postgres answering")

    def start_worker(self) -> None:
        """Start it, without waiting."""
        folder = self.folder / "connect"
        connect.prepare(folder, self.worker, capture.CONNECTOR, capture.connector(self.url, {}))
        password = {capture.PASSWORD_VARIABLE: capture.password(self.url)}
        self.start("connect", connect.server_command(folder, connect_jars(), self.worker), password)

    def start(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a program, as a session of its own that `kill` ends.

        `environment` is added to ours.
        """
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, STACK_VARIABLE: _IN_SESSION, **(environment or {})},
            )

    def kill(self, name: str) -> None:
        """As a lost machine would end it: nothing is written, nobody is told."""
        process = self.processes.pop(name)
        identity = ProcessId.of(process.pid)
        if name in ("database", "standby"):
            # What Postgres calls immediate: it comes back as after a crash. SIGKILL would leave its children behind.
            process.send_signal(signal.SIGQUIT)
        elif identity is not None:
            kill_session(identity, _IN_SESSION)
            process.kill()
        process.wait()

    def until_captured(self) -> None:
        """Until Kafka has whatever is committed now."""
        with psycopg.connect(self.url) as connection:
            now = connection.execute("SELECT clock_timestamp()").fetchone()
        assert now is not None

        def is_captured() -> bool:
            with suppress(psycopg.Error):
                return read_capture(self.url).lacks_seconds(now[0]) == 0
            return False

        wait_until(is_captured, f"the capture of what was committed (see {self.folder})", CAPTURE_SECONDS)

    def told(self) -> list[Told]:
        """All that the topics hold."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", "enable.auto.commit": False})
        try:
            found = [record for topic in CatalogTopic for record in _records(reader, topic)]
        finally:
            reader.close()
        return sorted(found, key=lambda record: record.place)

    def compacted(self) -> list[Told]:
        """What compaction would leave of them: the last record of each key in a partition."""
        last = {(record.topic, record.place[2], record.key): record for record in self.told()}
        return sorted(last.values(), key=lambda record: record.place)

    def versions(self, told: list[Told] | None = None) -> dict[Table, list[dict[str, Any]]]:
        """What joins would hold after the topics, or what was `told`, one record at a time."""
        held = {table: SCHEMAS[table].empty_table() for table in TABLE_OF.values()}
        for lsn, record in enumerate(self.told() if told is None else told, start=1):
            if (problem := change_problem(record.topic, record.key, record.value)) is not None:
                assert problem in self.problems
                continue
            row = parse_change(record.topic, record.value, lsn)
            table = TABLE_OF.get(CatalogTopic(record.topic))
            if row is None or table is None:
                continue
            news = without_repeats(table, held[table], pa.Table.from_pylist([row], schema=SCHEMAS[table]))
            held[table] = pa.concat_tables([held[table], news])
        return {table: rows.to_pylist() for table, rows in held.items()}


@contextmanager
def running_chain(folder: Path) -> Iterator[Chain]:
    """All three, migrated; the worker is yet to be started."""
    postgres, (database_port, port) = folder / "postgres", free_ports(2)
    postgres.mkdir()
    database.prepare(postgres)
    url = database.database_url(postgres, database_port)
    with running_broker(folder / "kafka") as bootstrap:
        chain = Chain(folder, bootstrap, url, database_port, connect.Worker(KafkaAccess(bootstrap=bootstrap), port))
        try:
            chain.start_database()
            migrate(url)
            yield chain
        finally:
            for name in list(chain.processes):
                chain.kill(name)


def _records(reader: Consumer, topic: str) -> Iterator[Told]:
    for partition in reader.list_topics(topic, timeout=30).topics[topic].partitions:
        place = TopicPartition(topic, partition, 0)
        _, end = reader.get_watermark_offsets(place, timeout=30)
        reader.assign([place])
        reached = 0
        while reached < end:
            record = reader.poll(30)
            assert record is not None, f"{topic} [{partition}] gives no record up to {end}"
            assert record.error() is None, record.error()
            offset = record.offset()
            assert offset is not None
            reached = offset + 1
            yield Told(topic, record.key(), record.value(), (record.timestamp()[1], topic, partition, offset))
