"""All that runs while faults strike: servers, proxies, and a stack whose four drivers are behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deployment.processes import STACK_VARIABLE, ProcessId
from deployment.stack import (
    KAFKA_VARIABLE,
    POSTGRES_VARIABLE,
    TABLES_VARIABLE,
    Deployment,
    Stack,
    read_stack,
)
from jobs.stack import StackConfig
from laptop.folders import Folders
from laptop.stopping import stop_supervisor
from laptop.watching import keep_alertmanager_config
from metering.vocabulary import ALWAYS, Job
from tests.faults.plan import API, Fault
from tests.faults.servers import BUCKET, Faced, Servers
from tests.faults.supervisor import DRIVERS_VARIABLE
from traffic.declared import CONTRACTS, DECLARED, REVERSAL

CONFIG: dict[str, Any] = {
    "jobs": {
        # Half of the clock's faults are believed, and half are waited for.
        "ingestion": {
            "max_clock_ahead_seconds": 25,
            "contracts": list(CONTRACTS),
            "reversal": REVERSAL,
            **DECLARED,
        },
        "joins": {"completion_timeout_seconds": 270, **DECLARED},
        "sessionization": DECLARED,
        "analytics": DECLARED,
        # One meter whose stragglers are dropped, so that both decisions are seen.
        "billing": {"grace_seconds": 600, "late_policy": {"cached_tokens": "drop"}, **DECLARED},
    }
}
"""Long times, so that the fate of an event is certain though a broker may be away when it is sent."""
TWO_SIZES = (Job.INGESTION, Job.JOINS, Job.BILLING)
ROWS = (1, 100, None)
"""None: as it is without executors, where the driver takes all."""
DriverRows = Mapping[Job, int | None]
START_SECONDS = 600
STOP_SECONDS = 150


@dataclass(frozen=True)
class Stage:
    """`deployment` is how the checks reach it all; `running` ends with the stage.

    `poisoned` are the faults whose record is in the topic.
    """

    stack_id: str
    folders: Folders
    servers: Servers
    deployment: Deployment
    running: ExitStack = field(default_factory=ExitStack)
    poisoned: list[Fault] = field(default_factory=list)

    def stack(self) -> Stack:
        """What the supervisor has written down last."""
        stack = read_stack(self.folders.data)
        assert stack is not None, "the supervisor runs"
        return stack

    def process(self, target: str) -> ProcessId | None:
        """The process of a job, the API or a server; None between its end and its next start."""
        return self.stack().process(target).process if target in (*ALWAYS, API) else self.servers.process(target)

    def log(self, name: str) -> Path:
        """Where something that a fault starts may write."""
        return self.folders.log(name)


@contextmanager
def staged(folder: Path, *, with_store: bool, driver_rows: DriverRows) -> Iterator[Stage]:
    """A running stage in an empty folder; all of it is ended in the end. Batches above `driver_rows` go to tasks."""
    stack_id = uuid.uuid4().hex
    servers = Servers(folder / "servers", stack_id, with_store=with_store)
    folders = Folders(folder / "weir")
    tables = f"s3://{BUCKET}/tables" if with_store else str(folders.tables)
    os.environ.update(_variables(servers.direct, tables))
    deployment = Deployment(
        kafka_bootstrap=servers.direct.kafka_bootstrap, postgres_url=servers.direct.postgres_url, tables=tables
    )
    try:
        servers.start()
        supervisor = _start_supervisor(folders, stack_id, _variables(servers.proxied, tables), config_of(driver_rows))
        identity = ProcessId.of(supervisor.pid)
        try:
            _wait_until_ready(folders, supervisor)
            with ExitStack() as running:
                yield Stage(stack_id, folders, servers, deployment, running)
        finally:
            if identity is not None:
                stop_supervisor(identity, STOP_SECONDS)
            supervisor.wait()
    finally:
        servers.stop()


def _variables(faced: Faced, tables: str) -> dict[str, str]:
    variables = {
        KAFKA_VARIABLE: faced.kafka_bootstrap,
        POSTGRES_VARIABLE: faced.postgres_url,
        TABLES_VARIABLE: tables,
    }
    if faced.store_url:
        variables |= {
            "AWS_ENDPOINT_URL": faced.store_url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
    return variables


def driver_rows_of(seed: int, given: int | None) -> DriverRows:
    """By application with two sizes up to how many rows of a batch its driver takes: what was given, or to each
    another of ROWS, which go round with the seed.
    """
    turned = {job: ROWS[(seed + place) % len(ROWS)] for place, job in enumerate(TWO_SIZES)}
    return turned if given is None else dict.fromkeys(TWO_SIZES, given)


def config_of(driver_rows: DriverRows) -> StackConfig:
    """CONFIG, with `driver_rows` for the applications that have two sizes."""
    sizes = {str(job): {"driver_rows": rows} for job, rows in driver_rows.items() if rows is not None}
    jobs = {job: {**settings, **sizes.get(job, {})} for job, settings in CONFIG["jobs"].items()}
    return StackConfig.model_validate({"jobs": jobs})


def _start_supervisor(
    folders: Folders, stack_id: str, drivers: dict[str, str], config: StackConfig
) -> subprocess.Popen[bytes]:
    for job, settings in config.items():
        file = folders.config(job)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False))
    keep_alertmanager_config(folders, None)
    log = folders.log("supervisor")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.supervisor", str(folders.data), stack_id],
            env={**os.environ, DRIVERS_VARIABLE: json.dumps(drivers), STACK_VARIABLE: stack_id},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _wait_until_ready(folders: Folders, supervisor: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (stack := read_stack(folders.data)) is None or not stack.is_ready:
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the stack does not start; see {folders.log('supervisor')}")
        time.sleep(0.5)
