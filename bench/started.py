"""`python -m bench.started`: how long `weir up` takes until everything runs, and until the first result."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench.processes import cpu_seconds
from bench.stack import Probes, running
from deployment.stack import Stack
from laptop.folders import Folders


@dataclass(frozen=True)
class Started:
    """`cpu_seconds` until the first result: of each process with all below it, and of the supervisor without them."""

    load: float
    ready_seconds: float
    first_result_seconds: float
    cpu_seconds: dict[str, float]


def measure_start(data_dir: Path) -> Started:
    """Start a stack as `weir up` does, send one event when everything runs, and stop it after its window is there."""
    load, began = os.getloadavg()[0], time.monotonic()
    with running(data_dir) as stack:
        ready = time.monotonic() - began
        probes = Probes(stack)
        probes.send()
        probes.wait_for_all()
        first_result = time.monotonic() - began
        _refuse_unless_billed(probes)
        return Started(load, ready, first_result, _used(stack))


def _refuse_unless_billed(probes: Probes) -> None:
    if len(probes.latencies) != 1:
        raise RuntimeError("the event was not billed in time")


def _used(stack: Stack) -> dict[str, float]:
    used = {
        process.name: cpu_seconds(process.process.pid) for process in stack.processes if process.process is not None
    }
    return {**used, "supervisor": cpu_seconds(stack.supervisor.pid) - sum(used.values())}


def main(
    times: Annotated[int, typer.Option(help="How often; the median counts.", min=1)] = 3,
    keep: Annotated[Path | None, typer.Option(help="Keep the logs in this folder.")] = None,
) -> None:
    """Each time in a folder of its own, so with an empty broker and database."""
    found = []
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as scratch:
        for number in range(times):
            folder = (keep or Path(scratch)) / f"{datetime.now(UTC):%H%M%S}-{number}"
            start = measure_start(folder)
            found.append(start)
            cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.cpu_seconds.items())
            typer.echo(
                f"load {start.load:.1f}: ready after {start.ready_seconds:.1f} s, first result after "
                f"{start.first_result_seconds:.1f} s, {sum(start.cpu_seconds.values()):.1f} CPU-s ({cpu})"
            )
            typer.echo(_timeline(folder))
    medians = (
        statistics.median(getattr(start, f"{what}_seconds") for start in found) for what in ("ready", "first_result")
    )
    typer.echo("medians: ready after {:.1f} s, first result after {:.1f} s".format(*medians))


def _timeline(folder: Path) -> str:
    """What the supervisor wrote, by the second in which it did."""
    return Folders(folder).log("supervisor").read_text(encoding="utf-8").split(" stopping ")[0].rpartition("\n")[0]


if __name__ == "__main__":
    typer.run(main)
