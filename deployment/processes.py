"""Processes that can be recognised again: by pid and start, so that a reused pid is never signalled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STACK_VARIABLE = "WEIR_STACK"
"""Environment variable with the id of the stack; every process of a stack has it, and its children inherit it."""


@dataclass(frozen=True)
class ProcessId:
    """The lasting identity of a process: `started` distinguishes it from a later process with the same pid."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of the process that has `pid` now, or None. A zombie has ended and is none."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid, _start_of(process))
        except psutil.Error:
            return None

    @property
    def is_running(self) -> bool:
        """Whether this very process still runs (or is frozen)."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process only; nothing happens when it has ended."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def session_members(leader: ProcessId, stack: str) -> list[ProcessId]:
    """What still runs of a program that was started as a session of its own, its children included.

    A child counts when it is in the leader's session and carries the stack's id: a session that was given the number
    of a dead leader is never taken for it.
    """
    members = [leader] if leader.is_running else []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid == leader.pid or os.getsid(process.pid) != leader.pid:
                continue
            identity = ProcessId.of(process.pid)
            if identity is not None and process.environ().get(STACK_VARIABLE) == stack:
                members.append(identity)
    return members


def kill_session(leader: ProcessId, stack: str) -> None:
    """SIGKILL all that is left of a program, until nothing is: a dying parent may have just made a child."""
    for _ in range(50):
        members = session_members(leader, stack)
        if not members:
            return
        for member in members:
            member.signal(signal.SIGKILL)
        time.sleep(0.05)


def wait_until_ended(processes: Iterable[ProcessId], timeout_seconds: float) -> list[ProcessId]:
    """Wait for processes to end; returns those that did not within the time."""
    waiting = list(processes)
    deadline = time.monotonic() + timeout_seconds
    while waiting := [process for process in waiting if process.is_running]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return waiting


def _start_of(process: psutil.Process) -> str:
    """When it started, in a form that a correction of the wall clock does not change where the system has one."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{process.create_time():.2f}"
    # The program's name, the second field, may hold blanks and brackets: count from the last bracket on.
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"
