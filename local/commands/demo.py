"""`weir demo`: everything, from nothing to bills that are compared with the truth."""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from local.commands.options import DEFAULT_DATA_DIR, DataDir
from local.commands.stack import summary
from local.commands.traffic import DEFAULT_RATE, EventsOption, SeedOption, run_traffic

if TYPE_CHECKING:
    from local.draining import Tell
    from local.stack import Stack
    from local.traffic.compare import Comparison
    from local.traffic.truth import Truth

CONFIG = {
    "jobs": {
        "ingestion": {"clocks": {"device": ["device/*"]}},
        # One meter whose stragglers are dropped, so that both decisions are seen.
        "billing": {"late_policy": {"cached_tokens": "drop"}},
    }
}
DRAIN_SECONDS = 600.0


def demo(
    *,
    events: EventsOption = 20_000,
    seed: SeedOption = None,
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop everything at the end; so it is without a terminal, or with CI=true.")
    ] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Start a stack, send traffic with every kind of trouble, and compare what was billed with the truth.

    Exit status 0 only if every account, model, meter and window is equal to the last digit, and every record is where
    it belongs.
    """
    from rich.console import Console

    from jobs.stack import StackConfig
    from local.folders import Folders
    from local.launch import Launch
    from local.progress import telling

    console = Console(stderr=True, highlight=False)
    with Launch.start(Folders(data_dir.resolve()), StackConfig.model_validate(CONFIG), console) as launch:
        typer.echo(summary(launch.stack, data_dir))
        with telling("Demo …") as tell:
            truth = run_traffic(launch.stack, events=events, rate=DEFAULT_RATE, seed=seed, tell=tell)
            typer.echo(f"{events} records sent (seed {truth['seed']}); waiting until they are billed.")
            comparison = settle(launch.stack, truth, DRAIN_SECONDS, tell)
        print_comparison(comparison)
        stays = not leave and sys.stdout.isatty() and os.environ.get("CI", "").lower() not in ("1", "true")
        if stays:
            launch.leave_running()
            typer.echo(f"The dashboard stays at {launch.stack.dashboard_url}; `weir down` stops everything.")
    if not comparison.is_equal:
        raise typer.Exit(1)


def settle(stack: Stack, truth: Truth, timeout_seconds: float, tell: Tell) -> Comparison:
    """Wait until everything is decided and billed, and compare. Raises Stuck when that does not happen in time."""
    from local.draining import drain
    from local.traffic.compare import compare

    timeout = truth["policy"]["completion_timeout_seconds"]
    decided_at = datetime.fromisoformat(truth["ends_at"]).timestamp() + timeout

    def explain(text: str) -> None:
        left = decided_at - time.time()
        why = f" (a request is abandoned {timeout} s after it was received: {left:.0f} s left)" if left > 0 else ""
        tell(text + why)

    drain(stack, timeout_seconds, include_waiting=True, tell=explain)
    return compare(truth, stack.postgres_url, stack.tables)


def print_comparison(comparison: Comparison) -> None:
    """The comparison as a table, and the verdict."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", overflow="fold")
    for name in ("expected", "found", "unexpected"):
        table.add_column(name, justify="right")
    table.add_column("")
    for check in comparison.checks:
        verdict = "equal" if check.is_equal else "DIFFERENT"
        table.add_row(check.name, str(check.expected), str(check.found), str(check.unexpected), verdict)
    console = Console(highlight=False)
    console.print(table)
    for line in comparison.differences:
        console.print(line, markup=False)
    typer.echo(comparison.verdict)
