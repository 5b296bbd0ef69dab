"""The whole stack as `weir up` starts it: time to the first result, latency, memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from bench.events import catalog, records
from bench.processes import resident_mib
from bench.work import Tell
from deployment.stack import Stack, running_stack
from jobs.streams import EVENTS_TOPIC

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
"""How long after the last probe one waits for its result."""


@dataclass(frozen=True)
class StackMeasured:
    """`first_result_seconds` from the command `weir up`; latencies from the append of a record to its usage window."""

    ready_seconds: float
    first_result_seconds: float
    latency_p50_seconds: float
    latency_p95_seconds: float
    probes: int
    lost_probes: int
    resident_mib: float
    resident_mib_by_process: dict[str, float]


def measure_stack(data_dir: Path, seconds: float, rate: int, tell: Tell) -> StackMeasured:
    """Run a stack with a steady trickle of `rate` events/s for so many seconds."""
    began = time.monotonic()
    tell("starting")
    with running(data_dir) as stack:
        ready = time.monotonic() - began
        tell("first result")
        probes = Probes(stack)
        probes.send()
        probes.wait_for_all()
        first_result = time.monotonic() - began
        apply_catalog(data_dir)
        tell(f"latency at {rate} events/s")
        latencies = trickle(stack, probes, seconds, rate)
        by_process = _memory(stack)
    p95 = statistics.quantiles(latencies, n=20)[-1] if len(latencies) > 1 else latencies[0]
    return StackMeasured(
        ready,
        first_result,
        statistics.median(latencies),
        p95,
        probes.sent - 1,
        probes.sent - 1 - len(latencies),
        sum(by_process.values()),
        by_process,
    )


@contextmanager
def running(data_dir: Path, *options: str) -> Iterator[Stack]:
    """A stack as `weir up` starts it, stopped after the block."""
    try:
        weir(data_dir, "up", "--detach", *options)
        yield running_stack(data_dir)
    finally:
        weir(data_dir, "down")


def weir(data_dir: Path, *arguments: str) -> None:
    """Run a command. Raises RuntimeError with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments, "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"weir {arguments[0]} failed:\n{done.stdout}{done.stderr}")


def apply_catalog(data_dir: Path) -> None:
    """Put the catalog that prices the traffic in force."""
    file = data_dir / "catalog.json"
    file.write_text(json.dumps(catalog()))
    weir(data_dir, "catalog", "apply", str(file))


class Probes:
    """Single `usage.v1` events, each of an account of its own, and when each was seen in `usage_windows`."""

    def __init__(self, stack: Stack) -> None:
        self._producer = Producer({"bootstrap.servers": stack.kafka_bootstrap, "linger.ms": 0})
        self._database = psycopg.connect(stack.postgres_url, autocommit=True)
        self._appended_at: dict[str, float] = {}
        self.sent = 0
        self.latencies: list[float] = []

    def send(self) -> None:
        """Append one; the broker's own stamp is its beginning."""
        account = f"probe-{self.sent:04d}"
        self.sent += 1

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._appended_at[account] = message.timestamp()[1] / 1000

        self._producer.produce(EVENTS_TOPIC, _probe(account), account.encode(), on_delivery=delivered)
        self._producer.poll(0)

    def look(self) -> None:
        """See which have arrived."""
        self._producer.poll(0)
        if not self._appended_at:
            return
        found = self._database.execute(
            "SELECT DISTINCT account FROM usage_windows WHERE account = ANY(%s)", [list(self._appended_at)]
        ).fetchall()
        seen_at = time.time()
        self.latencies += [seen_at - self._appended_at.pop(account) for (account,) in found]

    def wait_for_all(self) -> None:
        """Until every one that was sent has arrived, or patience is over."""
        self._producer.flush(PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._appended_at and time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_SECONDS)


def _probe(account: str) -> bytes:
    event = {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "bench",
        "id": account,
        "subject": account,
        "time": datetime.now(UTC).isoformat(),
        "data": {"request_id": account, "model": "model-00", "status": "completed", "usage_source": "provider"}
        | {"input_tokens": 1, "output_tokens": 1},
    }
    return json.dumps(event).encode()


def trickle(stack: Stack, probes: Probes, seconds: float, rate: int) -> list[float]:
    """Latencies of one probe a second beside steady traffic."""
    stopping = threading.Event()
    traffic = threading.Thread(target=_steady, args=(stack.kafka_bootstrap, rate, seconds, stopping))
    already = len(probes.latencies)
    traffic.start()
    try:
        end = due = time.monotonic() + 0.0
        end += seconds
        while (now := time.monotonic()) < end:
            if now >= due:
                probes.send()
                # Not in step with the 5 s of the batches: every phase of theirs is met.
                due += 1.037
            probes.look()
            time.sleep(POLL_SECONDS)
        probes.wait_for_all()
    finally:
        stopping.set()
        traffic.join()
    return probes.latencies[already:]


def _steady(bootstrap: str, rate: int, seconds: float, stopping: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    began = time.monotonic()
    for number, record in enumerate(records(int(rate * seconds), "stack", datetime.now(UTC), seed=3)):
        if stopping.wait(max(0.0, began + number / rate - time.monotonic())):
            break
        producer.produce(EVENTS_TOPIC, record.value, record.key)
        producer.poll(0)
    producer.flush(10)


def _memory(stack: Stack) -> dict[str, float]:
    """MiB by process of the running stack, the supervisor's own included."""
    now = running_stack(stack.data_dir)
    found = {p.name: resident_mib([p.process.pid]) for p in now.processes if p.process is not None}
    supervisor = resident_mib([now.supervisor.pid])
    return {**found, "supervisor": supervisor - sum(found.values())}
