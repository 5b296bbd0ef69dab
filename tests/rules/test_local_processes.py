"""Processes: exactly those that were started are recognised and ended, with their children, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deployment.processes import STACK_VARIABLE, ProcessId, kill_session, session_members, wait_until_ended
from deployment.stack import Process, Stack, State
from laptop.stopping import stop_processes
from tests.waiting import wait_until

PARENT_WITH_CHILD = "sleep 60 & echo $!; wait"


def started(script: str, stack: str = "s1") -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={**os.environ, STACK_VARIABLE: stack},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = started(PARENT_WITH_CHILD)
    yield process
    with_children = identity(process.pid)
    if with_children is not None:
        kill_session(with_children, "s1")
    process.wait()


def identity(pid: int) -> ProcessId | None:
    return ProcessId.of(pid)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def known(pid: int) -> ProcessId:
    found = identity(pid)
    assert found is not None
    return found


def freeze(process: subprocess.Popen[str]) -> None:
    """Stops ``process`` and returns when it has stopped: a SIGTERM that comes before would still end it."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_a_process_is_itself_and_no_other_with_its_pid() -> None:
    this = known(os.getpid())
    assert this.is_running
    assert not ProcessId(this.pid, "another start").is_running


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    child = identity(process.pid)
    if child is not None:
        assert wait_until_ended([child], 10) == []
    assert identity(process.pid) is None
    process.wait()


def test_a_session_is_killed_with_the_children_of_a_dead_leader(parent: subprocess.Popen[str]) -> None:
    leader = known(parent.pid)
    child = known(int(first_line(parent)))
    # Its shell prints the number before the child is the other program: while it becomes that, it shows no variables.
    wait_until(lambda: psutil.Process(child.pid).environ().get(STACK_VARIABLE) == "s1", "the child", 30)
    parent.kill()
    parent.wait()
    assert session_members(leader, "s1") == [child]
    kill_session(leader, "s1")
    # SIGKILL is sent; the kernel ends the process a moment later.
    assert wait_until_ended([child], 30) == []


def test_processes_of_another_stack_are_left_alone(parent: subprocess.Popen[str]) -> None:
    leader = ProcessId(parent.pid, "an earlier process with this pid")
    child = known(int(first_line(parent)))
    kill_session(leader, "another stack")
    assert parent.poll() is None
    assert child.is_running


def test_a_reused_pid_is_not_signalled(parent: subprocess.Popen[str]) -> None:
    ProcessId(parent.pid, "another start").signal(signal.SIGKILL)
    assert wait_until_ended([known(parent.pid)], 0.2) == [known(parent.pid)]


def test_stopping_goes_in_reverse_order_and_kills_a_frozen_process(tmp_path: Path) -> None:
    processes = {name: started("exec sleep 60") for name in ("broker", "billing", "dashboard")}
    freeze(processes["billing"])
    stack = Stack(
        "s1",
        tmp_path,
        known(os.getpid()),
        processes=tuple(Process(name, State.RUNNING, known(process.pid)) for name, process in processes.items()),
    )
    said: list[str] = []
    stop_processes(stack, said.append)
    assert said == ["stopping dashboard", "stopping billing", "stopping broker"]
    assert {name: process.wait() for name, process in processes.items()} == {
        "dashboard": -signal.SIGTERM,
        "billing": -signal.SIGKILL,
        "broker": -signal.SIGTERM,
    }
