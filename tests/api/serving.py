"""A running API in this process: real HTTP, a real broker, a real database."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import uvicorn
from confluent_kafka import Consumer, TopicPartition

from api.app import application
from api.server import ENDS_WITHIN_SECONDS, services_of, settings
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, TABLES_VARIABLE
from jobs.ingestion.config import IngestionConfig
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import EVENTS_TOPIC
from laptop.ports import LOOPBACK, free_ports
from metering.vocabulary import Job
from tests.waiting import wait_until


@dataclass(frozen=True)
class Answer:
    """Status, headers by lower-case name, and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """Where a running API is."""

    port: int
    bootstrap: str
    database: str
    connections: Collection[object] = field(default=(), kw_only=True)
    """That it has now."""

    def post(
        self, path: str, body: bytes, key: str | None, content_type: str = "application/json", **headers: str
    ) -> Answer:
        """POST a body; `_` in the names of headers is `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            given["Authorization"] = f"Bearer {key}"
        return self.request("POST", path, body, {"Content-Type": content_type, **given})

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """One request on a connection of its own."""
        connection = HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def records(self, topic: str = EVENTS_TOPIC) -> list[tuple[bytes | None, bytes, dict[str, Any]]]:
        """Key, value and headers of every record in a topic, by partition and offset."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", "enable.auto.commit": False})
        found = []
        try:
            for partition in consumer.list_topics(topic, timeout=60).topics[topic].partitions:
                place = TopicPartition(topic, partition, 0)
                _, end = consumer.get_watermark_offsets(place, timeout=60)
                consumer.assign([place])
                while consumer.position([place])[0].offset < end and end:
                    message = consumer.poll(60)
                    assert message is not None, "a record below the partition's end"
                    assert message.error() is None
                    value = message.value()
                    assert value is not None
                    found.append((message.key(), value, dict(message.headers() or [])))
        finally:
            consumer.close()
        return found


def start_ingestion(database: str, **config: Any) -> None:
    """What an ingestion that was started leaves in the database, by which the API validates."""
    Ownership.take(Job.INGESTION.value, database, IngestionConfig(**config).model_dump(mode="json")).close()


@contextmanager
def serving(
    bootstrap: str,
    database: str,
    *,
    is_ready: bool = True,
    port: int | None = None,
    tables: str | None = None,
    variables: Mapping[str, str] | None = None,
    ends_within_seconds: int = ENDS_WITHIN_SECONDS,
) -> Iterator[Server]:
    """An API that runs as long as the block."""
    port = port or free_ports(1)[0]
    environment = {KAFKA_VARIABLE: bootstrap, POSTGRES_VARIABLE: database, **(variables or {})}
    services = services_of(environment if tables is None else {**environment, TABLES_VARIABLE: tables}, "test")
    given = settings(LOOPBACK, port, ends_within_seconds)
    server = uvicorn.Server(uvicorn.Config(application(services), **given))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    running = Server(port, bootstrap, database, connections=server.server_state.connections)
    path = "/health/ready" if is_ready else "/health/live"

    def answers() -> bool:
        try:
            return running.request("GET", path, None, {}).status == 200
        except OSError:
            return False

    try:
        wait_until(answers, "the API answering", every_seconds=0.05)
        yield running
    finally:
        server.should_exit = True
        thread.join(60)
