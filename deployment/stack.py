"""What runs under a data folder, where it is reached, and how that is written down (`stack.json`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from deployment.errors import CannotRun
from deployment.processes import ProcessId
from jobs.runtime.postgres.address import SCHEMA_VARIABLE, in_schema
from jobs.runtime.tables_address import tables_problem

KAFKA_VARIABLE = "WEIR_KAFKA_BOOTSTRAP"
POSTGRES_VARIABLE = "WEIR_POSTGRES_URL"
TABLES_VARIABLE = "WEIR_TABLES"


class StackNotRunning(CannotRun):
    """No stack runs under the data folder, or not far enough to be used."""


class State(StrEnum):
    """Of one process, as its supervisor sees it."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    """It ended, and is started again after a pause."""
    STOPPED = "stopped"


@dataclass(frozen=True)
class Process:
    """One supervised process. `message` says why it ended last time, `exit_status` how (negative: by that signal)."""

    name: str
    state: State
    process: ProcessId | None = None
    restarts: int = 0
    exit_status: int | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A running Weir as commands reach it, on this machine or on a cluster.

    An address is empty until the part behind it is ready. `postgres_url` holds a password and is never printed.
    `tables` is the root of the Delta tables.
    """

    kafka_bootstrap: str = ""
    postgres_url: str = field(default="", repr=False)
    tables: str = ""


@dataclass(frozen=True)
class Stack(Deployment):
    """One start of a stack on this machine.

    `metrics_urls` is by job, and of the API; Prometheus and Alertmanager have no address where they are not installed.
    `id` is in the environment of every process of this start.
    """

    id: str
    data_dir: Path
    supervisor: ProcessId
    dashboard_url: str = ""
    api_url: str = ""
    prometheus_url: str = ""
    alertmanager_url: str = ""
    metrics_urls: Mapping[str, str] = field(default_factory=dict)
    is_ready: bool = False
    processes: tuple[Process, ...] = ()

    def process(self, name: str) -> Process:
        """The process by its name: `broker`, `database`, a job's name, or `dashboard`. Raises KeyError."""
        for process in self.processes:
            if process.name == name:
                return process
        raise KeyError(name)


def running_deployment(data_dir: Path) -> Deployment:
    """What the environment names, as in a pod of a cluster; else the stack under `data_dir`. Raises `CannotRun`."""
    return deployment_of(os.environ) or running_stack(data_dir)


def deployment_of(environment: Mapping[str, str]) -> Deployment | None:
    """The deployment whose tables the environment names; None where it names none. Raises `CannotRun`.

    An outside Kafka or Postgres alone may also be a laptop's: only tables say that the applications run elsewhere.
    """
    if TABLES_VARIABLE not in environment:
        return None
    if missing := sorted({KAFKA_VARIABLE, POSTGRES_VARIABLE} - environment.keys()):
        raise CannotRun(f"{TABLES_VARIABLE} is set, but not {' and '.join(missing)}: set all three, or none.")
    refuse_unreachable_tables(environment)
    return Deployment(
        kafka_bootstrap=environment[KAFKA_VARIABLE],
        postgres_url=postgres_url_of(environment),
        tables=environment[TABLES_VARIABLE],
    )


def refuse_unreachable_tables(environment: Mapping[str, str]) -> None:
    """Raises `CannotRun` for tables at a place that no client of ours reaches."""
    if problem := tables_problem(environment.get(TABLES_VARIABLE, "")):
        raise CannotRun(f"{TABLES_VARIABLE} {problem}.")


def postgres_url_of(environment: Mapping[str, str]) -> str:
    """The database's address, in Weir's own schema. Raises `CannotRun` for a schema that cannot be that."""
    try:
        return in_schema(environment[POSTGRES_VARIABLE], environment.get(SCHEMA_VARIABLE))
    except ValueError as error:
        raise CannotRun(f"{SCHEMA_VARIABLE} {error}.") from None


def running_stack(data_dir: Path) -> Stack:
    """The stack that runs under `data_dir`, with broker and database ready. Raises `StackNotRunning`."""
    stack = read_stack(data_dir)
    if stack is None or not stack.supervisor.is_running:
        raise StackNotRunning(not_running(data_dir))
    if not stack.kafka_bootstrap or not stack.postgres_url:
        raise StackNotRunning(
            f"The stack on {data_dir} is still starting; `weir status{named(data_dir)}` shows how far it is."
        )
    return stack


def read_stack(data_dir: Path) -> Stack | None:
    """What `stack.json` says, whether it still runs or not; None without one, or with one of another version."""
    try:
        content = json.loads(_file(data_dir).read_text(encoding="utf-8"))
        return _stack(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_stack(stack: Stack) -> None:
    """Replace `stack.json` in one step, readable by its owner only: it holds the database's password."""
    scratch = _file(stack.data_dir).with_suffix(".json.new")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(stack), file, default=str, indent=2)
    scratch.replace(_file(stack.data_dir))


def remove_stack(data_dir: Path) -> None:
    """Nothing of the stack runs any more."""
    with suppress(FileNotFoundError):
        _file(data_dir).unlink()


def _file(data_dir: Path) -> Path:
    return data_dir / "stack.json"


def not_running(data_dir: Path) -> str:
    """What to say of a folder without a stack."""
    return (
        f"No stack runs in {data_dir}: start one with `weir up{named(data_dir)}`, or name the folder of yours with "
        "--data-dir. On a cluster, run this command in the pod of billing's or ingestion's driver."
    )


def named(data_dir: Path) -> str:
    """The option, after a blank, that names a folder to any `weir` command; empty for the folder that needs none."""
    default = Path(".weir")
    return "" if data_dir in (default, default.resolve()) else f" --data-dir {data_dir}"


def _stack(content: dict[str, Any]) -> Stack:
    processes = tuple(
        Process(**{**entry, "state": State(entry["state"]), "process": _process_id(entry["process"])})
        for entry in content["processes"]
    )
    return Stack(
        **{
            **content,
            "data_dir": Path(content["data_dir"]),
            "supervisor": ProcessId(**content["supervisor"]),
            "processes": processes,
        }
    )


def _process_id(content: dict[str, Any] | None) -> ProcessId | None:
    return None if content is None else ProcessId(**content)
