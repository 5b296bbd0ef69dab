"""Starts a stack's supervisor in the background and watches until everything runs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from deployment.errors import CannotRun
from deployment.processes import ProcessId
from deployment.stack import KAFKA_VARIABLE, Stack, State, named, read_stack
from jobs.runtime.errors import ExitStatus
from laptop.folders import UMASK, Folders, open_log
from laptop.jars import broker_jars, connect_jars, connector_jars
from laptop.java import archive_of, find_java
from laptop.stopping import stop_supervisor
from laptop.supervised import last_lines
from laptop.watching import keep_alertmanager_config
from metering.vocabulary import ALWAYS, Job

if TYPE_CHECKING:
    from jobs.stack import StackConfig

START_LIMIT_SECONDS = 180.0
REFUSALS = 2
"""A program that refuses to start this often in a row needs a change by a person: waiting does not help."""
STOP_LIMIT_SECONDS = 150.0
LAST_LINES = 15


class AlreadyRunning(CannotRun):
    """Another supervisor holds the data folder."""


class ApplicationsRefuse(CannotRun):
    """Applications refuse to go on, until a person does what their messages say."""


@contextmanager
def locked(folders: Folders, patience_seconds: float = 2.0) -> Iterator[int]:
    """Take the data folder's lock; returns the descriptor, which keeps it in every process that inherits it.

    A supervisor that has just ended may hold it for a moment more, until the last of its threads is gone. Raises
    `AlreadyRunning` when another process still holds it after `patience_seconds`.
    """
    folders.data.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folders.lock, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + patience_seconds
    try:
        while not _lock(descriptor):
            if time.monotonic() > deadline:
                option = named(folders.data)
                raise AlreadyRunning(
                    f"A stack already runs on {folders.data}: `weir status{option}` shows it, `weir down{option}` "
                    "stops it. To run another one beside it, give that a folder of its own with --data-dir."
                )
            time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Launch:
    """A stack that was started by this process. Left as a context it is stopped, unless `leave_running` was called."""

    def __init__(self, supervisor: subprocess.Popen[bytes], folders: Folders, console: Console) -> None:
        self._supervisor = supervisor
        self._identity = ProcessId.of(supervisor.pid)
        self._folders = folders
        self._console = console
        self._stays = False
        self._stack: Stack | None = None

    @classmethod
    @contextmanager
    def start(
        cls,
        folders: Folders,
        config: StackConfig | None,
        console: Console,
        alertmanager_config: Path | None = None,
        limit_seconds: float = START_LIMIT_SECONDS,
        *,
        stays_if_refused: bool = False,
    ) -> Iterator[Launch]:
        """Start a stack and wait until all of it runs.

        `config` is None for the defaults. Raises `CannotRun` when it does not within the limit, or sooner where an
        application refuses to start.

        A signal to end this process ends the block first, and so the stack.

        With `stays_if_refused` the rest goes on if applications refuse: `weir rebuild` and other repairs need it.
        """
        with _signals_interrupt():
            launch = cls(_start_supervisor(folders, config, alertmanager_config), folders, console)
            try:
                if missing := archives_missing():
                    console.print(missing)
                launch._stack = launch._until_ready(limit_seconds)
                yield launch
            except ApplicationsRefuse as refusal:
                if not stays_if_refused:
                    raise
                launch.leave_running()
                option = named(folders.data)
                raise CannotRun(
                    f"{refusal}\nAll else runs. Do what is said there, and see `weir status{option}`; "
                    f"`weir down{option}` stops everything."
                ) from None
            finally:
                if not launch._stays:
                    launch._stop()

    @property
    def stack(self) -> Stack:
        """The running stack."""
        assert self._stack is not None, "only used inside the context"
        return self._stack

    def leave_running(self) -> None:
        """The stack outlives this process."""
        self._stays = True

    def wait(self) -> None:
        """Wait until another process stops the stack. Raises `CannotRun` when its supervisor crashed."""
        if self._supervisor.wait() != 0:
            raise CannotRun(
                f"The supervisor ended with {self._supervisor.returncode}; `weir down{named(self._folders.data)}` "
                "stops the processes that it has left."
            )

    def _until_ready(self, limit_seconds: float) -> Stack:
        started = time.monotonic()
        shown: set[str] = set()
        with self._console.status("Starting …") as status:
            while True:
                stack = self._read()
                elapsed = time.monotonic() - started
                running = (
                    {process.name for process in stack.processes if process.state is State.RUNNING} if stack else set()
                )
                for name in sorted(running - shown):
                    self._console.print(f"{name} runs ({elapsed:.0f} s)")
                shown |= running
                if stack is not None:
                    waiting = [process.name for process in stack.processes if process.state is not State.RUNNING]
                    status.update(f"Waiting for {', '.join(waiting) or 'the database'} …")
                    if stack.is_ready:
                        return stack
                    _raise_if_refused(stack)
                if self._supervisor.poll() is not None:
                    words = last_lines(self._folders.log("supervisor"), 3)
                    raise CannotRun("\n".join(["The stack could not be started:", *words]))
                if elapsed > limit_seconds:
                    raise CannotRun(not_ready(stack, self._folders, limit_seconds))
                time.sleep(0.1)

    def _read(self) -> Stack | None:
        """The record of this start; one that a crash has left is not taken for it."""
        stack = read_stack(self._folders.data)
        return stack if stack is not None and stack.supervisor == self._identity else None

    def _stop(self) -> None:
        if self._identity is not None:
            stop_stack(self._identity, self._console)


def keep_config(folders: Folders, config: StackConfig | None) -> None:
    """Write the file that each application is started with, by default an empty one; one that does not run has none."""
    given: dict[str, dict[str, Any]] = {job.value: {} for job in ALWAYS}
    if config is not None:
        given = {job: settings.model_dump(mode="json", exclude_unset=True) for job, settings in config.items()}
    for off in Job:
        if off not in given:
            folders.config(off).unlink(missing_ok=True)
    for job, settings in given.items():
        file = folders.config(job)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def archives_missing() -> str:
    """A sentence where Java starts without an archive of its classes, as after new jars; empty where it has all."""
    jars = {"spark": connector_jars, "broker": broker_jars, "connect": connect_jars}
    if KAFKA_VARIABLE in os.environ:
        del jars["broker"]
    lacking = [name for name, folder in jars.items() if not archive_of(name, folder()).exists()]
    if not lacking:
        return ""
    return (
        f"Java starts without an archive of its classes ({', '.join(lacking)}), which takes longer: "
        "`python -m laptop.class_archive` and `python -m laptop.server_archives` make them, as `make setup` does."
    )


def _start_supervisor(
    folders: Folders, config: StackConfig | None, alertmanager_config: Path | None
) -> subprocess.Popen[bytes]:
    """Start the supervisor as a session of its own, with what it needs already there. Raises `CannotRun`."""
    with locked(folders) as lock:
        find_java()
        connector_jars()
        connect_jars()
        if KAFKA_VARIABLE not in os.environ:
            broker_jars()
        keep_config(folders, config)
        keep_alertmanager_config(folders, alertmanager_config)
        with open_log(folders.log("supervisor")) as output:
            return subprocess.Popen(
                [sys.executable, "-m", "laptop.supervisor", str(folders.data)],
                cwd=folders.data,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[lock],
                umask=UMASK,
            )


def stop_stack(supervisor: ProcessId, console: Console) -> None:
    """Stop a supervisor with everything it started, and wait for it. Raises `CannotRun` when it had to be killed."""
    with console.status("Stopping …"):
        if not stop_supervisor(supervisor, STOP_LIMIT_SECONDS):
            raise CannotRun("The supervisor did not stop in time and was killed: run `weir down` again.")


def _raise_if_refused(stack: Stack) -> None:
    """Raises `CannotRun` with the messages of applications that refuse to start, and would again.

    It is `ApplicationsRefuse` if a command can help; another configuration needs another `weir up`.
    """
    final = (ExitStatus.REFUSED, ExitStatus.BAD_CONFIGURATION)
    refusing = [process for process in stack.processes if process.exit_status in final and process.restarts >= REFUSALS]
    if refusing:
        error = ApplicationsRefuse if all(p.exit_status == ExitStatus.REFUSED for p in refusing) else CannotRun
        raise error("\n".join(f"{process.name} refuses to start: {process.message}" for process in refusing))


def not_ready(stack: Stack | None, folders: Folders, limit_seconds: float) -> str:
    """What is missing after the limit, with the end of each log, and how to give it longer."""
    report = list[str]()
    for process in stack.processes if stack else ():
        if process.state is not State.RUNNING:
            report += [f"--- {process.name}: {process.state}", *last_lines(folders.log(process.name), LAST_LINES)]
    longer = f"`weir up{named(folders.data)} --timeout {3 * limit_seconds:.0f}`"
    report.append(
        f"Not everything runs after {limit_seconds:.0f} s, so all of it was stopped. If the logs above show no error, "
        f"the machine is busy: run {longer}."
    )
    return "\n".join(report)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal interrupt like Ctrl-C; further ones do not disturb the stopping."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
