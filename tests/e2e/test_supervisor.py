"""The supervisor: one stack per folder, found again after its crash, and nobody else's process ever touched."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deployment.stack import Process, Stack, State, running_stack
from laptop.folders import UMASK
from laptop.watching import ALERTMANAGER, PROMETHEUS, find
from metering.vocabulary import ALWAYS
from tests.e2e.conftest import processes_of, up, weir_at
from tests.waiting import wait_until

MEMORY_LIMIT_BYTES = 6 * 1024**3
NAMES = ["broker", "database", "connect", *ALWAYS, "api"]


@pytest.fixture
def bystander(stack: Stack) -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else, working in the same folder with the same Python."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=stack.data_dir)
    yield process
    process.kill()
    process.wait()


def processes(stack: Stack) -> tuple[Process, ...]:
    return running_stack(stack.data_dir).processes


def test_everything_is_written_down_and_runs(stack: Stack) -> None:
    watchers = {"alertmanager": find(ALERTMANAGER), "prometheus": find(PROMETHEUS)}
    installed = [name for name, path in watchers.items() if path]
    assert [process.name for process in processes(stack)] == [*NAMES, *installed, "dashboard"]
    # One that an earlier test has killed may still be starting.
    wait_until(lambda: {process.state for process in processes(stack)} == {State.RUNNING}, "each of them running")


def test_status_shows_every_application(stack: Stack) -> None:
    answer = weir_at(stack.data_dir, "status", "--format", "json")
    rows = json.loads(answer.stdout)
    assert [row["job"] for row in rows] == list(ALWAYS)
    assert {row["state"] for row in rows} <= {"running", "catching_up"}
    assert all(row["records_behind"] >= 0 and row["pid"] > 0 for row in rows)
    assert answer.returncode == 0


def test_no_command_prints_the_database_password(stack: Stack) -> None:
    password = (stack.data_dir / "postgres" / "password").read_text().strip()
    answers = [weir_at(stack.data_dir, *command) for command in (["status"], ["up", "--detach"])]
    assert all(password not in answer.stdout + answer.stderr for answer in answers)
    assert all(password not in log.read_text(errors="replace") for log in (stack.data_dir / "logs").iterdir())


def test_nobody_else_reads_the_logs_and_every_process_of_the_stack_writes_for_its_owner_alone(stack: Stack) -> None:
    """By its umask: Hadoop gives the files of checkpoints, which have positions alone, a mode of its own."""
    logs = [*(stack.data_dir / "logs").iterdir()]
    assert [log.name for log in logs if log.stat().st_mode & 0o077] == []
    umasks = {}
    for pid in processes_of(running_stack(stack.data_dir).id):
        # One that has ended meanwhile writes nothing.
        with suppress(OSError):
            umasks[pid] = int(
                re.findall(r"^Umask:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0], 8
            )
    assert len(umasks) > len(NAMES)
    assert [pid for pid, umask in umasks.items() if umask & UMASK != UMASK] == []


def test_a_second_up_is_refused_and_disturbs_nothing(stack: Stack) -> None:
    before = [process.process for process in processes(stack)]
    answer = weir_at(stack.data_dir, "up", "--detach")
    assert answer.returncode == 1
    assert "already runs" in answer.stderr
    assert [process.process for process in processes(stack)] == before


def test_a_configuration_that_is_refused_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text("jobs: {billing: {grace_seconds: -1}}")
    answer = weir_at(tmp_path / "weir", "up", "--detach", "--config", str(file))
    assert answer.returncode == 2
    assert "grace_seconds" in answer.stderr
    assert "-1" in answer.stderr
    assert not (tmp_path / "weir").exists()


def test_the_whole_stack_stays_within_its_memory(stack: Stack) -> None:
    recorded = running_stack(stack.data_dir)
    pids = {*processes_of(recorded.id), recorded.supervisor.pid}
    used_bytes = 0
    for pid in pids:
        # What has ended meanwhile, such as a session's process of Postgres, uses nothing.
        with suppress(psutil.NoSuchProcess):
            # Pages that several processes share count once with PSS; RSS would count the same Python four times.
            used_bytes += psutil.Process(pid).memory_full_info().pss
    assert used_bytes < MEMORY_LIMIT_BYTES


@pytest.mark.long
def test_a_folder_left_behind_by_a_crash_is_recovered(stack: Stack, bystander: subprocess.Popen[bytes]) -> None:
    crashed = running_stack(stack.data_dir)
    crashed.supervisor.signal(signal.SIGKILL)
    down = weir_at(stack.data_dir, "status")
    assert down.returncode == 1
    assert "has crashed" in down.stderr
    assert processes_of(crashed.id) != [], "the applications outlive their supervisor"

    started = up(stack.data_dir)

    assert started.returncode == 0, started.stderr
    assert processes_of(crashed.id) == []
    assert not any(process.process.is_running for process in crashed.processes if process.process)
    assert bystander.poll() is None
    again = running_stack(stack.data_dir)
    addresses = (again.kafka_bootstrap, again.postgres_url, again.tables, again.dashboard_url, again.metrics_urls)
    assert addresses == (
        stack.kafka_bootstrap,
        stack.postgres_url,
        stack.tables,
        stack.dashboard_url,
        stack.metrics_urls,
    )


def test_down_stops_everything_it_started_and_nothing_else(stack: Stack, bystander: subprocess.Popen[bytes]) -> None:
    """The last of all end-to-end tests: it leaves no stack to share."""
    before = running_stack(stack.data_dir)
    stopped = weir_at(stack.data_dir, "down")
    assert stopped.returncode == 0, stopped.stderr
    assert processes_of(before.id) == []
    assert not before.supervisor.is_running
    assert not any(process.process.is_running for process in before.processes if process.process)
    assert bystander.poll() is None
    assert "Nothing runs" in weir_at(stack.data_dir, "down").stdout
    assert weir_at(stack.data_dir, "status").returncode == 1
