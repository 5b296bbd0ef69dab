"""An idle stack: what the applications use while nothing is open, and how soon the first event afterwards is seen."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.analytics import shipped_patterns
from bench.processes import cpu_seconds
from bench.stack import Probes, apply_catalog, running
from bench.work import TWO_VIEWS, Tell
from deployment.stack import Stack, running_stack
from metering.vocabulary import ALWAYS, Job

SETTLED_SECONDS = 110.0
"""A minute's window, timeout and grace, and the beats and reports that come behind them."""
CONFIG = {
    "jobs": {
        "ingestion": {"max_clock_ahead_seconds": 5},
        "sessionization": {"session_gap_seconds": 10},
        "joins": {"completion_timeout_seconds": 10},
        "billing": {"grace_seconds": 10},
    },
    "views": TWO_VIEWS,
    "patterns": shipped_patterns(),
    "watches": True,
}
"""So that all is soon over: gap, timeout and grace of 10 s. Analytics runs beside the four that always do."""


@dataclass(frozen=True)
class IdleMeasured:
    """`cpu_seconds` by application, its Java and its workers included, within `seconds` in which no event came."""

    seconds: float
    cpu_seconds: Mapping[str, float]
    first_result_seconds: float
    """From the append of the first event after that to its usage window."""

    def percent_of_a_core(self, job: str) -> float:
        """What one application used, on average."""
        return self.cpu_seconds[job] / self.seconds * 100

    @property
    def percent_together(self) -> float:
        """What the four used that always run."""
        return sum(self.percent_of_a_core(job) for job in ALWAYS)


def measure_idle(data_dir: Path, seconds: float, tell: Tell) -> IdleMeasured:
    """Run a stack with one event in it, let that close, and measure for so many seconds in which nothing comes."""
    config = data_dir.with_name(f"{data_dir.name}.json")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(CONFIG))
    tell("starting")
    with running(data_dir, "--config", str(config)) as stack:
        apply_catalog(data_dir)
        probes = Probes(stack)
        probes.send()
        probes.wait_for_all()
        tell("waiting until nothing is open")
        time.sleep(SETTLED_SECONDS)
        tell(f"measuring {seconds:.0f} s in which nothing comes")
        before, began = _used(stack), time.monotonic()
        time.sleep(seconds)
        after, passed = _used(stack), time.monotonic() - began
        tell("the first event after it")
        probes.send()
        probes.wait_for_all()
    return IdleMeasured(passed, {job: after[job] - before[job] for job in before}, probes.latencies[-1])


def _used(stack: Stack) -> dict[str, float]:
    """CPU-seconds so far, by application."""
    now = running_stack(stack.data_dir)
    processes = {job.value: now.process(job).process for job in (*ALWAYS, Job.ANALYTICS)}
    return {job: cpu_seconds(process.pid) for job, process in processes.items() if process is not None}
