"""A client of `GET /v1/windows/stream`, and what billing publishes for it to follow."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from confluent_kafka import Producer

from jobs.billing.messages import window_message
from laptop.ports import LOOPBACK
from metering.windows import MINUTE
from tests.api.serving import Answer, Server
from tests.waiting import wait_until

T0 = datetime(2026, 11, 1, 10, tzinfo=UTC)
SECONDS = 60
PARTITION_UA = -1
"""Any."""
PATH = "/v1/windows/stream"


def publish(bootstrap: str, account: str, versions: Iterable[int], pad: int = 0, partition: int = PARTITION_UA) -> None:
    """Changes of an account's windows, each of a minute of its own; `pad` lengthens its meter's name.

    Without `partition` Kafka's client chooses it by the key.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    for version in versions:
        row: dict[str, Any] = {"window_start": T0 + version * MINUTE, "window_end": T0 + (version + 1) * MINUTE}
        row |= {"account": account, "model": "m1", "meter": "requests" + "x" * pad, "currency": "EUR"}
        row |= {"price_version": 1, "version": version, "quantity": "1", "unit_price": "1", "amount": "1"}
        key, value = window_message({**row, "updated_at": T0 + timedelta(days=1)})
        producer.produce("windows", value, key, partition)
        producer.poll(0)
    assert producer.flush(30) == 0


class Follower:
    """What a stream has sent so far. A thread reads it until it ends, or until `leave`."""

    def __init__(self, server: Server, headers: Mapping[str, str], query: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.resets = 0
        self.heartbeats = 0
        self.last_id = ""
        self.ended = threading.Event()
        self._connection = HTTPConnection(LOOPBACK, server.port, timeout=120)
        self._connection.request("GET", PATH + query, None, dict(headers))
        response = self._connection.getresponse()
        self.answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, b"")
        if response.status != 200:
            self.answer = Answer(response.status, self.answer.headers, response.read())
            self.ended.set()
            return
        self._thread = threading.Thread(target=self._read, args=[response], daemon=True)
        self._thread.start()
        wait_until(lambda: bool(self.last_id), "the stream's begin", SECONDS, every_seconds=0.02)

    def versions(self) -> list[int]:
        """Of the events."""
        return [event["data"]["version"] for event in self.events]

    def wait_for(self, count: int) -> None:
        """Until so many events have come."""
        wait_until(lambda: len(self.events) >= count, f"{count} changes", SECONDS, every_seconds=0.05)
        assert len(self.events) == count

    def leave(self) -> None:
        """Disconnect."""
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        # Its thread closes what it reads from.
        self.ended.wait(10)
        self._connection.close()

    def _read(self, response: HTTPResponse) -> None:
        block: dict[str, str] = {}
        try:
            for raw in response:
                line = raw.decode().rstrip("\n")
                if line:
                    name, _, value = line.partition(":")
                    block[name] = value.removeprefix(" ")
                    continue
                self._take(block)
                block = {}
        except (OSError, ValueError, HTTPException):
            pass
        finally:
            self.ended.set()

    def _take(self, block: Mapping[str, str]) -> None:
        self.last_id = block.get("id", self.last_id)
        self.heartbeats += "" in block
        if block.get("event") == "reset":
            self.resets += 1
        elif "data" in block:
            self.events.append(json.loads(block["data"]))


@contextmanager
def following(server: Server, key: str, after: str | None = None, query: str = "") -> Iterator[Follower]:
    """A client that follows as long as the block."""
    headers = {"Authorization": f"Bearer {key}", **({} if after is None else {"Last-Event-ID": after})}
    follower = Follower(server, headers, query)
    try:
        yield follower
    finally:
        follower.leave()
