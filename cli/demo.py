"""`weir demo`: starts everything, sends traffic, and compares the bills with the truth."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from cli.audit import audited
from cli.compare import print_comparison, settle
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, print_rows
from cli.stack import summary
from cli.traffic import DEFAULT_RATE, EventsOption, SeedOption, run_traffic
from jobs.audit.check_rows import PRINTED, check_rows, printed_rows
from traffic.declared import CONTRACTS, DECLARED, REVERSAL

if TYPE_CHECKING:
    from jobs.stack import StackConfig
    from laptop.folders import Folders

CONFIG = {
    "jobs": {
        # Short, so that repeats come beyond it, too, which are looked for by the day of their event.
        "ingestion": {
            "clocks": {"device": ["device/*"]},
            "exact_horizon_seconds": 5,
            "contracts": list(CONTRACTS),
            "reversal": REVERSAL,
            **DECLARED,
        },
        # Short, so that nobody waits long for what is abandoned.
        "joins": {"completion_timeout_seconds": 120, **DECLARED},
        "sessionization": DECLARED,
        "analytics": DECLARED,
        # One meter whose stragglers are dropped, so that both decisions are seen.
        "billing": {"grace_seconds": 300, "late_policy": {"cached_tokens": "drop"}, **DECLARED},
    }
}
DRAIN_SECONDS = 600.0


def demo(
    *,
    events: EventsOption = 20_000,
    seed: SeedOption = None,
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop everything at the end; the default without a terminal or with CI=true.")
    ] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Start a stack, send traffic with every kind of trouble, and compare what was billed with the truth.

    Then an audit applies reversals and late corrections, and the result is compared
    once more. Exit status 0 only if every account, model, meter and window is equal to the last digit, every record is
    where it belongs, and the audit finds no difference without a known cause.
    """
    from rich.console import Console

    from cli.progress import telling
    from jobs.audit.recompute.basis import Scope
    from jobs.stack import StackConfig
    from laptop.folders import Folders
    from laptop.launch import Launch

    console = Console(stderr=True, highlight=False)
    folders, config = Folders(data_dir.resolve()), StackConfig.model_validate(CONFIG)
    with Launch.start(folders, config, console) as launch:
        keep_demo_config(folders, config)
        typer.echo(summary(launch.stack, data_dir))
        with telling("Demo …") as tell:
            truth = run_traffic(launch.stack, events=events, rate=DEFAULT_RATE, seed=seed, tell=tell)
            typer.echo(f"{events} records sent (seed {truth['seed']}); waiting until they are billed.")
            live = settle(launch.stack, truth, DRAIN_SECONDS, tell)
        print_comparison(live)
        typer.echo("Now an audit applies reversals and prices that came late.")
        promises = audited(launch.stack, Scope())
        print_rows(printed_rows(check_rows(promises)), PRINTED, Format.TABLE)
        with telling("Demo …") as tell:
            standing = settle(launch.stack, truth, DRAIN_SECONDS, tell, audited=True)
        print_comparison(standing)
        stays = not leave and sys.stdout.isatty() and os.environ.get("CI", "").lower() not in ("1", "true")
        if stays:
            launch.leave_running()
            typer.echo(f"The dashboard stays at {launch.stack.dashboard_url}; `weir down` stops everything.")
    if not (live.is_equal and standing.is_equal and all(check.holds for check in promises)):
        raise typer.Exit(1)


def keep_demo_config(folders: Folders, config: StackConfig) -> None:
    """Write it into the data folder, for the next `weir up`."""
    settings = config.model_dump(mode="json", exclude_unset=True)
    folders.demo_config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
