"""What `weir up` leaves behind if an application refuses to start: nothing, or all that the repair needs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from deployment.errors import CannotRun
from deployment.processes import ProcessId
from deployment.stack import Process, Stack, State, write_stack
from jobs.runtime.errors import ExitStatus
from jobs.stack import StackConfig
from laptop import launch
from laptop.folders import Folders


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setattr(launch, "_start_supervisor", lambda *_: process)
        yield process
        process.kill()


def start(folder: Path, supervisor: subprocess.Popen[bytes], status: ExitStatus, *, stays_if_refused: bool) -> str:
    """The error of a start whose billing has refused twice."""
    identity = ProcessId.of(supervisor.pid)
    assert identity is not None
    billing = Process("billing", State.RESTARTING, restarts=2, exit_status=status, message="weir rebuild billing")
    write_stack(Stack(id="s1", data_dir=folder, supervisor=identity, processes=(billing,)))
    begin = launch.Launch.start(Folders(folder), StackConfig(), Console(quiet=True), stays_if_refused=stays_if_refused)
    with pytest.raises(CannotRun, match="billing refuses to start: weir rebuild billing") as refused, begin:
        pytest.fail("it has started")
    return str(refused.value)


def test_detached_the_rest_goes_on_running_for_the_command_that_repairs(
    tmp_path: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    said = start(tmp_path, supervisor, ExitStatus.REFUSED, stays_if_refused=True)
    assert supervisor.poll() is None
    assert "All else runs" in said
    assert f"weir down --data-dir {tmp_path}" in said


@pytest.mark.parametrize(
    ("status", "stays_if_refused"),
    [(ExitStatus.REFUSED, False), (ExitStatus.BAD_CONFIGURATION, True)],
    ids=["in the foreground", "a configuration that no command repairs"],
)
def test_else_everything_is_stopped(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], status: ExitStatus, stays_if_refused: bool
) -> None:
    said = start(tmp_path, supervisor, status, stays_if_refused=stays_if_refused)
    assert supervisor.wait(10) != 0
    assert "All else runs" not in said


def test_a_start_that_is_interrupted_at_once_leaves_no_stack(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "archives_missing", interrupted)
    begin = launch.Launch.start(Folders(tmp_path), StackConfig(), Console(quiet=True))
    with pytest.raises(KeyboardInterrupt), begin:
        pytest.fail("it has started")
    assert supervisor.poll() is not None
