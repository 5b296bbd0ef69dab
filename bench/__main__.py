"""`python -m bench`: measure the applications one after another, then the whole stack, busy and idle."""

from __future__ import annotations

import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.analytics import AnalyticsMeasured, measure_analytics
from bench.audited import AuditMeasured, measure_audit
from bench.declared import DeclaredMeasured, measure_declared
from bench.idle import IdleMeasured, measure_idle
from bench.parts import Setting, running_parts
from bench.posted import PostedMeasured, measure_posted
from bench.prices import PricesMeasured, measure_prices
from bench.report import Run, lines, table, write
from bench.stack import StackMeasured, measure_stack
from bench.work import TWO_VIEWS, Marks, Measured, Plan, Tell, measure_ingestion, measure_reader
from jobs.stack import StackConfig
from metering.vocabulary import ALWAYS, Job

WARM_UP_EVENTS = 1_800_000
"""After 600,000 Java still compiled: the next 600,000 took a third more than the 2,400,000 after them."""
NEEDS = {
    "sessionization": ["ingestion"],
    "joins": ["ingestion"],
    "billing": ["ingestion", "joins"],
    "analytics": ["ingestion", "joins"],
}
"""Whose output each application is measured on."""
OTHERS = ("watching", "declared", "prices", "stack", "posted", "idle", "audit")
STACK_RATE = 50
WATCHED_RATE = 10_000
"""Events a second: ingestion commits 50,000 every 5 s then, and analytics decides itself how many commits it takes
together. What a batch of it costs hardly depends on how many outcomes it has."""


def main(
    events: Annotated[int, typer.Option(help="Events that are measured, after the warm-up.", min=1_000)] = 1_200_000,
    jobs: Annotated[
        str,
        typer.Option(help=f"Which applications, by commas, and {', '.join(OTHERS)}."),
    ] = ",".join([*ALWAYS, *OTHERS]),
    quick: Annotated[
        bool, typer.Option("--quick", help="Little warm-up and short phases: to see that it works.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep all data and logs in this folder.")] = None,
) -> None:
    """Measure CPU per event, near-empty batches, memory and latency; write them to bench/results/."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Everything that was started is stopped, also where a shell had the signals ignored.
        signal.signal(number, lambda *_: sys.exit(1))
    console = Console(stderr=True, highlight=False)
    chosen = set(jobs.split(","))
    if unknown := chosen - {*Job, *OTHERS}:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join([*Job, *OTHERS])}")
    plan = Plan(100_000, min(events, 100_000), 4) if quick else Plan(WARM_UP_EVENTS, events, 12)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as scratch:
        folder = keep or Path(scratch)
        measured = _applications(folder, plan, chosen, console) if chosen & {*Job} else []
        watching = _watching(folder / "watching", events, console) if "watching" in chosen else None
        declared = _declared(folder / "declared", events, console) if "declared" in chosen else None
        prices = _prices(folder / "prices", events, console) if "prices" in chosen else None
        stack = _stack(folder / "stack", 30.0 if quick else 150.0, console) if "stack" in chosen else None
        posted = _posted(folder / "posted", 10.0 if quick else 60.0, console) if "posted" in chosen else None
        idle = _idle(folder / "idle", 60.0 if quick else 600.0, console) if "idle" in chosen else None
        audit = _audit(folder / "audit", plan, 30.0 if quick else 120.0, console) if "audit" in chosen else None
    run = Run(measured, watching, declared, prices, stack, posted, idle, audit)
    Console().print(table(lines(run)))
    console.print(f"Written to {write(run, plan, datetime.now(UTC))}")


def _applications(folder: Path, plan: Plan, chosen: set[str], console: Console) -> list[Measured]:
    needed = {*chosen, *(name for job in chosen for name in NEEDS.get(job, []))}
    found: list[Measured] = []
    marks: dict[str, Marks] = {}
    console.print("broker and database start …")
    views = TWO_VIEWS if Job.ANALYTICS in chosen else {}
    config = StackConfig.model_validate({"jobs": {"analytics": {"views": views}}})
    with running_parts(folder, Setting(config)) as parts:
        for job in Job:
            if job not in needed:
                continue
            tell = _teller(job, console)
            if job == "ingestion":
                measured, marks[job] = measure_ingestion(folder, parts, plan, tell)
            else:
                writer = NEEDS[job][-1]
                measured, marks[job] = measure_reader(job, folder, parts, plan, marks=marks[writer], tell=tell)
            console.print(
                f"{job}: {measured.cpu_seconds_per_million:.1f} CPU-s/M, "
                f"{measured.cpu_ms_per_idle_batch:.0f} CPU-ms per near-empty batch, "
                f"start {measured.start.cpu_seconds:.0f} CPU-s, {measured.resident_mib:.0f} MiB"
            )
            found += [measured] if job in chosen else []
    return found


def _watching(folder: Path, events: int, console: Console) -> AnalyticsMeasured:
    return measure_analytics(folder, Plan(events // 2, events // 2, 0, WATCHED_RATE), _teller("watching", console))


def _declared(folder: Path, events: int, console: Console) -> DeclaredMeasured:
    # A ratio needs less than a number: a sixth of the events for each case.
    return measure_declared(folder, Plan(events // 6, events // 6, 0), _teller("declared", console))


def _prices(folder: Path, events: int, console: Console) -> PricesMeasured:
    return measure_prices(folder, Plan(events // 4, events // 2, 0), _teller("prices", console))


def _stack(folder: Path, seconds: float, console: Console) -> StackMeasured:
    return measure_stack(folder, seconds, STACK_RATE, _teller("stack", console))


def _posted(folder: Path, seconds: float, console: Console) -> PostedMeasured:
    return measure_posted(folder, seconds, _teller("posted", console))


def _idle(folder: Path, seconds: float, console: Console) -> IdleMeasured:
    return measure_idle(folder, seconds, _teller("idle", console))


def _audit(folder: Path, plan: Plan, seconds: float, console: Console) -> AuditMeasured:
    return measure_audit(folder, min(1_000_000, plan.warm_up), seconds, STACK_RATE, _teller("audit", console))


def _teller(what: str, console: Console) -> Tell:
    def tell(text: str) -> None:
        console.print(f"{datetime.now(UTC):%H:%M:%S} {what}: {text} …")

    return tell


if __name__ == "__main__":
    typer.run(main)
