"""`weir up` and `weir down`: start and stop the stack of a data folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.lines import refuse_missing
from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import FileRefused

if TYPE_CHECKING:
    from deployment.stack import Stack
    from jobs.stack import StackConfig

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="YAML file with `jobs`, `meters`, `views` and more (docs/reference/configuration.md); default: no file.",
    ),
]
AlertmanagerOption = Annotated[
    Path | None,
    typer.Option("--alertmanager-config", help="Alertmanager's own YAML file: where alerts go (webhook, mail, chat)."),
]
DetachOption = Annotated[bool, typer.Option("--detach", help="Return when everything runs, and leave it running.")]


TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait until everything runs.")]


def up(
    detach: DetachOption = False,
    config: ConfigOption = None,
    alertmanager_config: AlertmanagerOption = None,
    timeout: TimeoutOption = 180.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Start the broker, the database, the applications and the dashboard; Ctrl-C stops them.

    Where `weir demo` has run, its configuration is used unless you give one: its prices need it.

    With Prometheus and Alertmanager on the PATH they run too, and alerts are shown on the dashboard.

    Exit status 2 for a configuration that is refused, 1 when something does not start. All is stopped then; but if an
    application refuses to go on until somebody repairs something, --detach leaves the rest running for the repair.
    """
    from rich.console import Console

    from laptop.folders import Folders
    from laptop.launch import Launch

    refuse_missing(alertmanager_config)
    folders = Folders(data_dir.resolve())
    if config is None and folders.demo_config.exists():
        config = folders.demo_config
        typer.echo(f"Configured by {config}, as `weir demo` was: its prices need that.", err=True)
    settings = None if config is None else _checked(config)
    console = Console(stderr=True, highlight=False)
    alertmanager = None if alertmanager_config is None else alertmanager_config.resolve()
    start = Launch.start(folders, settings, console, alertmanager, timeout, stays_if_refused=detach)
    with start as launch:
        typer.echo(summary(launch.stack, data_dir))
        if detach:
            launch.leave_running()
        else:
            typer.echo("Ctrl-C stops it.")
            with suppress(KeyboardInterrupt):
                launch.wait()


def _checked(config: Path) -> StackConfig:
    """What a file says. Raises FileRefused. Only here, because it takes a second to load what checks it."""
    from jobs.stack import load_stack_config

    try:
        return load_stack_config(config)
    except ValueError as refusal:
        raise FileRefused(str(refusal)) from None


def down(data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Stop what `weir up` started on this folder, and nothing else."""
    from rich.console import Console

    from deployment.stack import read_stack
    from laptop.folders import Folders
    from laptop.launch import locked, stop_stack
    from laptop.supervisor import recover

    folders = Folders(data_dir.resolve())
    stack = read_stack(folders.data)
    if stack is None and not folders.lock.exists():
        typer.echo(f"Nothing runs in {data_dir}.")
        return
    if stack is not None and stack.supervisor.is_running:
        stop_stack(stack.supervisor, Console(stderr=True, highlight=False))
    with locked(folders, patience_seconds=20.0):
        # Leftovers of a killed supervisor; after a clean stop there is nothing.
        recover(folders.data)
    typer.echo(f"Stopped what ran in {data_dir}." if stack else f"Nothing runs in {data_dir}.")


def summary(stack: Stack, data_dir: Path) -> str:
    """Where the parts of a running stack are; without the database's address, which holds a password."""
    from laptop.watching import HOW_TO_GET

    missing = f"not on the PATH: {HOW_TO_GET}"
    lines = [
        f"dashboard  {stack.dashboard_url}",
        f"api        {stack.api_url}",
        f"prometheus {stack.prometheus_url or missing}",
        f"alerts     {stack.alertmanager_url or missing}",
        f"kafka      {stack.kafka_bootstrap}",
        f"tables     {stack.tables}",
        *(f"metrics    {url}  ({job})" for job, url in stack.metrics_urls.items()),
        f"logs       {data_dir / 'logs'}",
    ]
    return "\n".join(lines)
