"""An audit of a large journal beside the live stack: what it uses, and how much later events reach their windows."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.events import records
from bench.parts import send
from bench.processes import cpu_seconds
from bench.stack import Probes, apply_catalog, running, trickle, weir
from bench.work import Tell
from deployment.stack import Stack

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class AuditMeasured:
    """`cpu_seconds` of the whole command, its Java and its tasks included; latencies as in `StackMeasured`."""

    journal_rows: int
    seconds: float
    cpu_seconds: float
    p95_alone_seconds: float
    p95_beside_seconds: float
    checks: list[Mapping[str, Any]]

    @property
    def cpu_seconds_per_million(self) -> float:
        """Per million rows of the journal."""
        return self.cpu_seconds / self.journal_rows * 1e6

    @property
    def moved_seconds(self) -> float:
        """How much later the live stack was while the audit ran."""
        return max(0.0, self.p95_beside_seconds - self.p95_alone_seconds)


def measure_audit(data_dir: Path, events: int, seconds: float, rate: int, tell: Tell) -> AuditMeasured:
    """Meter so many events, then audit them all while `rate` events/s come; before that the same without the audit."""
    tell("starting")
    with running(data_dir) as stack:
        apply_catalog(data_dir)
        tell(f"metering {events:,} events")
        send(stack.kafka_bootstrap, records(events, "audited", datetime.now(UTC), seed=5))
        weir(data_dir, "drain", "--timeout", "900")
        probes = Probes(stack)
        tell(f"latency at {rate} events/s, alone")
        alone = trickle(stack, probes, seconds, rate)
        tell("the same beside an audit")
        return _beside(stack, probes, rate, alone, tell)


def _beside(stack: Stack, probes: Probes, rate: int, alone: list[float], tell: Tell) -> AuditMeasured:
    audit = Audit(stack.data_dir)
    began = time.monotonic()
    audit.start()
    beside: list[float] = []
    while audit.is_alive():
        beside += trickle(stack, probes, 30.0, rate)
    tell(f"audited in {audit.seconds:.0f} s")
    rows = next(check["examined"] for check in audit.checks if check["check"] == "I2")
    # What came after its end was not beside it.
    share = min(1.0, audit.seconds / (time.monotonic() - began))
    counted = beside[: max(2, round(len(beside) * share))]
    return AuditMeasured(rows, audit.seconds, audit.cpu_seconds, _p95(alone), _p95(counted), audit.checks)


class Audit(threading.Thread):
    """`weir audit` in a process of its own, watched while it runs."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__()
        self._command = [sys.executable, "-m", "cli.main", "audit", "--format", "json", "--data-dir", str(data_dir)]
        self._answer = data_dir / "audit.json"
        self.seconds, self.cpu_seconds = 0.0, 0.0
        self.checks: list[Mapping[str, Any]] = []

    def run(self) -> None:
        """Until it ends. What it used last is what it used."""
        began = time.monotonic()
        with self._answer.open("wb") as answer, subprocess.Popen(self._command, stdout=answer) as process:
            while process.poll() is None:
                self.cpu_seconds = max(self.cpu_seconds, cpu_seconds(process.pid))
                time.sleep(POLL_SECONDS)
        self.seconds = time.monotonic() - began
        self.checks = json.loads(self._answer.read_text())


def _p95(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=20)[-1] if len(latencies) > 1 else latencies[0]
