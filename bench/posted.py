"""The API of a running stack under load: how long its answers take, and what an event costs it.

Requests are due at fixed instants, whether or not earlier ones are answered, and an answer's time counts from when its
request was due: a slow server does not slow the clock that measures it.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from api import key_store
from bench.events import records
from bench.processes import cpu_seconds
from bench.stack import apply_catalog, running
from bench.work import Tell
from deployment.stack import Stack
from metering.api_keys import Scope

ROUTE = "/v1/events"
API_PROCESS = "api"
CONNECTIONS = 64
WARM_UP_SECONDS = 5.0


@dataclass(frozen=True)
class Load:
    """What is sent: requests of so many events each, so many a second."""

    events_per_request: int
    requests_per_second: int


BATCHES, SINGLES = Load(100, 20), Load(1, 300)


@dataclass(frozen=True)
class Answered:
    """Of one load. `cpu_seconds` are the API's, Kafka's and Postgres' not included; `failed` had another status."""

    events: int
    failed: int
    p50_ms: float
    p99_ms: float
    cpu_seconds: float

    @property
    def cpu_seconds_per_million(self) -> float:
        """Of events."""
        return self.cpu_seconds / self.events * 1_000_000


@dataclass(frozen=True)
class PostedMeasured:
    """Beside a stack that meters what is posted."""

    batches: Answered
    singles: Answered


def measure_posted(data_dir: Path, seconds: float, tell: Tell) -> PostedMeasured:
    """Post each load for so many seconds to the API of a stack of its own."""
    tell("starting")
    with running(data_dir) as stack:
        apply_catalog(data_dir)
        key = key_store.create(stack.postgres_url, [Scope.INGEST], "bench").key
        time.sleep(WARM_UP_SECONDS)  # until the API has read the key
        return PostedMeasured(*(_measured(stack, key, load, seconds, tell) for load in (BATCHES, SINGLES)))


def _measured(stack: Stack, key: str, load: Load, seconds: float, tell: Tell) -> Answered:
    tell(f"{load.requests_per_second} requests/s of {load.events_per_request} events, warming up")
    _post_all(stack, key, load, WARM_UP_SECONDS)
    process = stack.process(API_PROCESS).process
    assert process is not None, "the API runs"
    tell(f"{load.requests_per_second} requests/s of {load.events_per_request} events for {seconds:.0f} s")
    before = cpu_seconds(process.pid)
    statuses, milliseconds = _post_all(stack, key, load, seconds)
    return Answered(
        len(statuses) * load.events_per_request,
        sum(status != 200 for status in statuses),
        statistics.median(milliseconds),
        statistics.quantiles(milliseconds, n=100)[-1],
        cpu_seconds(process.pid) - before,
    )


def _post_all(stack: Stack, key: str, load: Load, seconds: float) -> tuple[list[int], list[float]]:
    """The status of each answer, and milliseconds from when its request was due."""
    count = int(load.requests_per_second * seconds)
    bodies = _bodies(load, count)
    began = time.monotonic() + 0.5
    statuses, milliseconds = [0] * count, [0.0] * count

    def post(worker: int) -> None:
        connection = HTTPConnection(urlsplit(stack.api_url).netloc, timeout=60)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/cloudevents-batch+json"}
        for number in range(worker, count, CONNECTIONS):
            due = began + number / load.requests_per_second
            time.sleep(max(0.0, due - time.monotonic()))
            connection.request("POST", ROUTE, bodies[number], headers)
            answer = connection.getresponse()
            answer.read()
            statuses[number], milliseconds[number] = answer.status, (time.monotonic() - due) * 1000
        connection.close()

    workers = [threading.Thread(target=post, args=(worker,)) for worker in range(CONNECTIONS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return statuses, milliseconds


def _bodies(load: Load, count: int) -> Sequence[bytes]:
    now = datetime.now(UTC)
    sent = records(count * load.events_per_request, f"posted-{now.timestamp():.0f}", now, seed=5)
    parts = (islice(sent, load.events_per_request) for _ in range(count))
    return [json.dumps([json.loads(record.value) for record in part]).encode() for part in parts]
