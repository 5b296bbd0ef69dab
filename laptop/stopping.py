"""Stops the processes of a stack, in the reverse of the order they were started in, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

import psutil

from deployment.processes import ProcessId, kill_session, wait_until_ended
from deployment.stack import Process, Stack
from metering.vocabulary import Job

FIRST_TO_LAST = (
    ("api", "webhooks", "dashboard", "prometheus", "alertmanager"),
    tuple(reversed(Job)),
    ("connect",),
    ("database",),
    ("broker",),
)
"""Programs of one group are stopped together: none of them needs another to end well."""

SIGNALS = {"database": signal.SIGINT}
"""SIGTERM, except Postgres, which would wait for its clients on SIGTERM and ends their sessions on SIGINT."""

PATIENCE_SECONDS = 30.0

Report = Callable[[str], None]


def stop_processes(stack: Stack, report: Report) -> None:
    """Ask every recorded process to stop; what does not within `PATIENCE_SECONDS`, and what it leaves, is killed."""
    for group in FIRST_TO_LAST:
        processes = [process for process in stack.processes if process.name in group and process.process is not None]
        for process in sorted(processes, key=lambda found: group.index(found.name)):
            _ask(process, report)
        for unwilling in wait_until_ended(_identities(processes), PATIENCE_SECONDS):
            report(f"pid {unwilling.pid} did not stop within {PATIENCE_SECONDS:.0f} s and is killed")
        for identity in _identities(processes):
            kill_session(identity, stack.id)


def stop_supervisor(supervisor: ProcessId, timeout_seconds: float) -> bool:
    """Tell the supervisor to stop everything; kill it when it does not end in time. Returns whether it ended itself."""
    supervisor.signal(signal.SIGTERM)
    if not wait_until_ended([supervisor], timeout_seconds):
        return True
    supervisor.signal(signal.SIGKILL)
    wait_until_ended([supervisor], 5.0)
    return False


def _ask(process: Process, report: Report) -> None:
    identity = process.process
    if identity is None or not identity.is_running:
        return
    report(f"stopping {process.name}")
    # A frozen process would keep the request for ever.
    frozen = psutil.Process(identity.pid).status() == psutil.STATUS_STOPPED
    identity.signal(signal.SIGKILL if frozen else SIGNALS.get(process.name, signal.SIGTERM))


def _identities(processes: Iterable[Process]) -> list[ProcessId]:
    return [process.process for process in processes if process.process is not None]
