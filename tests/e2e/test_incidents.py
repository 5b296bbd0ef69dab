"""Planted storms, leaks and crossings on a stack of its own whose analytics and billing are killed meanwhile: views,
matches, hits and crossed limits equal a brute force over the truth, and the bill is exact.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deployment.stack import Stack, running_stack
from tests.e2e.conftest import weir_at
from tests.e2e.metering import drain
from tests.incidents.brute_force import DECLARED, KEEP_DAYS, WATCHES, WITHIN
from tests.incidents.found import refuse_differences
from tests.pipelines.test_watch_hits import add
from tests.waiting import wait_until

EVENTS = 1_500
KILLED = ("analytics", "billing")
KILLS = 4
CONFIG: dict[str, Any] = {
    "jobs": {
        "joins": {"completion_timeout_seconds": 120},
        "billing": {"grace_seconds": 300},
        "analytics": {"keep_days": KEEP_DAYS},
    },
    **DECLARED,
}
_POSITION = "SELECT coalesce(max(next_position), 1) FROM positions WHERE job = %s AND input = 'usage'"
_FINAL = "SELECT min(final_until) FROM analytics_patterns WHERE is_declared"


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Stack]:
    data_dir, config = tmp_path / "weir", tmp_path / "weir.json"
    config.write_text(json.dumps(CONFIG))
    try:
        started = weir_at(data_dir, "up", "--detach", "--config", str(config))
        assert started.returncode == 0, started.stdout + started.stderr
        yield running_stack(data_dir)
    finally:
        stopped = weir_at(data_dir, "down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr


def value_of(stack: Stack, statement: str, *of: Any) -> Any:
    with psycopg.connect(stack.postgres_url) as connection:
        row = connection.execute(statement, of).fetchone()
    assert row is not None
    return row[0]


def pid_of(stack: Stack, job: str) -> int | None:
    """None between the end of a driver and the start of the next."""
    process = running_stack(stack.data_dir).process(job).process
    return None if process is None else process.pid


def is_another(stack: Stack, job: str, before: int) -> bool:
    return pid_of(stack, job) not in (None, before)


def has_moved(stack: Stack, job: str, before: int) -> bool:
    return bool(value_of(stack, _POSITION, job) > before)


def kill(stack: Stack, job: str) -> int:
    """Kill a driver with all its processes; its pid."""
    wait_until(lambda: pid_of(stack, job) is not None, f"{job} being started again")
    pid = pid_of(stack, job)
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    return pid


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_analytics_and_limits_find_though_both_are_killed_is_what_a_brute_force_finds_in_the_truth(
    watching: Stack, tmp_path: Path
) -> None:
    watches = {condition: add(watching.postgres_url, condition) for condition in WATCHES}
    file = tmp_path / "truth.json"
    command = [sys.executable, "-m", "cli.main", "traffic", "--incidents", "--events", str(EVENTS), "--rate", "40"]
    sending = subprocess.Popen([*command, "--seed", "5", "--truth", str(file), "--data-dir", str(watching.data_dir)])
    try:
        for number in range(KILLS):
            # Now in the middle of its traffic, now as soon as it is there.
            if number % 2 == 0:
                for job in KILLED:
                    before = value_of(watching, _POSITION, job)
                    wait_until(partial(has_moved, watching, job, before), f"{job} reading on")
            for job, pid in {job: kill(watching, job) for job in KILLED}.items():
                wait_until(partial(is_another, watching, job, pid), f"another {job}")
        assert sending.wait(timeout=280) == 0
    finally:
        sending.kill()
        sending.wait()
    compared = weir_at(watching.data_dir, "compare", str(file))
    assert compared.returncode == 0, compared.stdout + compared.stderr
    truth = json.loads(file.read_text())
    passed = datetime.fromisoformat(truth["ends_at"]) + WITHIN + timedelta(minutes=1)
    wait_until(lambda: value_of(watching, _FINAL) >= passed, "all matches final", 300, every_seconds=1)
    drain(watching)
    refuse_differences(watching.postgres_url, truth, watches)
