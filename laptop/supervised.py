"""One supervised program: started, watched, and started again when it ends, as a cluster would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deployment.errors import CannotRun
from deployment.processes import STACK_VARIABLE, ProcessId, kill_session
from deployment.stack import Process, State
from jobs.backoff import Backoff
from laptop.folders import open_log

if TYPE_CHECKING:
    from laptop.programs import Program

MAX_LOG_BYTES = 32 * 1024 * 1024
LAST_LINE_BYTES = 8 * 1024
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Supervised:
    """A program with its current process. `step` is called again and again; nothing in here waits."""

    def __init__(self, program: Program, stack: str, log: Path, folder: Path) -> None:
        self._program = program
        self._stack = stack
        self._log = log
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_due_at = 0.0
        self._backoff = Backoff()
        self.record = Process(program.name, State.STARTING)

    @property
    def is_early(self) -> bool:
        """Whether it is started before broker and database can be used."""
        return self._program.is_early

    def step(self, now: float) -> bool:
        """Do what is due at `now` (monotonic seconds). Returns whether `record` changed."""
        before = self.record
        if self._process is None:
            if now >= self._start_due_at:
                self._start(now)
        elif (status := self._process.poll()) is not None:
            self._ended(status, now)
        else:
            self._turn_log_over()
            if self.record.state is State.STARTING and self._program.is_ready():
                self.record = replace(self.record, state=State.RUNNING)
        return self.record != before

    def _start(self, now: float) -> None:
        try:
            command = self._program.command()
        except CannotRun as error:
            self._schedule(str(error), None, 0.0, now)
            return
        with open_log(self._log) as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, **self._program.environment, STACK_VARIABLE: self._stack},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started_at = now
        # One that has already ended has no start to be recognised by, but may have left children in its session.
        identity = ProcessId.of(self._process.pid) or ProcessId(self._process.pid, "ended")
        self.record = replace(self.record, state=State.STARTING, process=identity)

    def _turn_log_over(self) -> None:
        """A program may run for months. It only appends, so after a log was emptied it writes from the beginning."""
        with suppress(OSError):  # the file was removed, or the disk has no room for the copy
            if self._log.stat().st_size > MAX_LOG_BYTES:
                try:
                    # With its mode, also over a copy that an earlier release has made.
                    shutil.copy(self._log, self._log.with_suffix(".log.1"))
                finally:
                    os.truncate(self._log, 0)

    def _ended(self, status: int, now: float) -> None:
        # The whole session: an orphaned JVM would go on writing beside its successor.
        if self.record.process is not None:
            kill_session(self.record.process, self._stack)
        self._process = None
        self._schedule(last_log_line(self._log), status, now - self._started_at, now)

    def _schedule(self, message: str | None, status: int | None, ran_seconds: float, now: float) -> None:
        self._backoff = self._backoff.after(ran_seconds)
        self._start_due_at = now + self._backoff.delay_seconds
        self.record = replace(
            self.record,
            state=State.RESTARTING,
            process=None,
            restarts=self.record.restarts + 1,
            exit_status=status,
            message=message,
        )


def last_log_line(log: Path) -> str | None:
    """The last line of a log that is not empty, without colours; of a JSON line its reason or event."""
    lines = last_lines(log, 1)
    if not lines:
        return None
    try:
        entry = json.loads(lines[0])
        return str(entry.get("reason") or entry["event"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return lines[0]


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank, without colours; none when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINE_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in ANSI.sub("", text).splitlines() if line.strip()][-count:]
