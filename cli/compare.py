"""`weir compare`: the bills of a run of traffic, compared with its truth."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psycopg
import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import FileRefused
from metering.vocabulary import Job

if TYPE_CHECKING:
    from deployment.draining import Tell
    from deployment.stack import Deployment
    from traffic.compare import Comparison
    from traffic.truth import Truth


def compare(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `weir traffic --truth FILE` has written.")],
    *,
    audited: Annotated[
        bool,
        typer.Option("--audited", help="`weir audit` has run since: compare with the audited result."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait at most after every request is decided."),
    ] = 600.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Wait until a run of `weir traffic` is decided and billed, and compare it with its truth.

    An audit corrects bills: it takes back what was reversed, and prices what a change of the catalog came too late for.
    After it compare with --audited, before it without. Exit status 0 only if every account, model, meter and window is
    equal to the last digit, and every record is where it belongs.
    """
    from cli.progress import telling
    from deployment.stack import running_deployment
    from traffic.truth import read

    try:
        truth = read(file)
    except ValueError as problem:
        raise FileRefused(str(problem)) from problem
    if audited and "audited" not in truth:
        raise FileRefused(f"{file} has no audited result: an earlier release wrote it.")
    with telling("Comparing …") as tell:
        comparison = settle(running_deployment(data_dir), truth, timeout, tell, audited=audited)
    print_comparison(comparison)
    if not comparison.is_equal:
        raise typer.Exit(1)


def settle(stack: Deployment, truth: Truth, timeout_seconds: float, tell: Tell, *, audited: bool = False) -> Comparison:
    """Wait until everything is decided and billed, and compare.

    Raises Stuck when that does not happen within `timeout_seconds` after the last outcome can be decided.
    """
    from deployment.draining import drain
    from traffic.compare import compare

    timeout = truth["policy"]["completion_timeout_seconds"]

    def explain(text: str) -> None:
        left = undecided_seconds(truth, _now_seconds())
        why = f" (requests without a completion are decided within {timeout} s: {left:.0f} s left)" if left > 0 else ""
        tell(text + why)

    limit_seconds = undecided_seconds(truth, _now_seconds()) + timeout_seconds
    drain(stack, limit_seconds, include_waiting=True, tell=explain)
    _wait_until_counted(stack, truth, timeout_seconds, tell)
    return compare(truth, stack.postgres_url, stack.tables, audited=audited)


def _wait_until_counted(stack: Deployment, truth: Truth, timeout_seconds: float, tell: Tell) -> None:
    """Wait until the last minute of the run is over for ingestion, which counts sequence numbers by the minute."""
    from deployment.draining import POLL_SECONDS, Stuck, condition
    from traffic.found import numbers_are_counted

    deadline = time.monotonic() + timeout_seconds
    with psycopg.connect(stack.postgres_url, autocommit=True, connect_timeout=10) as database:
        while not numbers_are_counted(database, truth["tag"]):
            tell("ingestion: the minute in which the last number of a sequence came is not over")
            if time.monotonic() >= deadline:
                raise Stuck(
                    f"After {timeout_seconds:g} s ingestion has not counted the sequence numbers of the last minute; "
                    f"{condition(stack, Job.INGESTION)}"
                )
            time.sleep(POLL_SECONDS)


def _now_seconds() -> float:
    return time.time()  # noqa: TID251 -- the command waits by this machine's clock


def undecided_seconds(truth: Truth, now: float) -> float:
    """How long from `now` (seconds since 1970) a part that was sent last may wait for its other part."""
    last_sent = datetime.fromisoformat(truth["ends_at"]).timestamp()
    return max(0.0, last_sent + float(truth["policy"]["completion_timeout_seconds"]) - now)


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
