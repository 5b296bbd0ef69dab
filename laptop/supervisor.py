"""The supervisor's process: starts a stack in order, keeps it running, and stops it on request."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from deployment.errors import CannotRun
from deployment.processes import STACK_VARIABLE, ProcessId
from deployment.stack import POSTGRES_VARIABLE, Process, Stack, State, read_stack, remove_stack, write_stack
from deployment.topics import ensure_topics
from laptop.dashboard import reader_password
from laptop.folders import Folders, open_log
from laptop.programs import Program, applications, choose_addresses, postgres_url, servers, webhook_sender
from laptop.stopping import stop_processes
from laptop.supervised import Supervised, last_lines

STEP_SECONDS = 0.2
FIRST_STEPS_SECONDS = 0.1
"""Until everything runs."""

log = logging.getLogger("supervisor")


class Supervisor:
    """Runs one stack; `stack` is the record that `stack.json` holds."""

    def __init__(self, stack: Stack, stopping: threading.Event) -> None:
        self._stack = stack
        self._stopping = stopping
        self._folders = Folders(stack.data_dir)
        self._supervised: list[Supervised] = []
        self._is_usable = False
        """Whether broker and database have what every application needs."""

    def run(self) -> None:
        """Run until asked to stop. Raises `CannotRun` when the broker's topics or the schema cannot be used."""
        write_stack(self._stack)
        try:
            self._start()
            while not self._stopping.is_set():
                self._step()
        finally:
            self._folders.usable.unlink(missing_ok=True)
            stop_processes(self._stack, log.info)
            remove_stack(self._stack.data_dir)

    def _start(self) -> None:
        """Start the servers, and beside them what is early; then the rest.

        Two cores have work from the beginning: what is early is not used before topics and schema are there.
        """
        self._folders.usable.unlink(missing_ok=True)
        addresses = choose_addresses(self._folders)
        first = servers(self._folders, addresses)
        _prepare(first)
        url = postgres_url(self._folders, addresses)
        programs = [*first, *applications(self._folders, addresses, url)]
        self._supervise(programs)
        steps = {
            "broker": partial(
                ensure_topics,
                addresses.kafka_bootstrap,
                self._folders.event_topics(),
                with_optional=self._folders.wants_ordered_events(),
            ),
            "database": partial(self._migrate, url, is_embedded=addresses.database_port is not None),
        }
        if not self._until_done(steps):
            return
        self._stack = replace(
            self._stack,
            kafka_bootstrap=addresses.kafka_bootstrap,
            postgres_url=url,
            tables=str(self._folders.tables),
            dashboard_url=addresses.dashboard_url,
            api_url=addresses.api_url,
            prometheus_url=addresses.prometheus_url,
            alertmanager_url=addresses.alertmanager_url,
            metrics_urls=addresses.metrics_urls,
        )
        write_stack(self._stack)
        for program in programs:
            program.on_usable()
        self._is_usable = True
        self._folders.usable.touch()
        self._supervise(webhook_sender(url))
        if self._until_running():
            self._stack = replace(self._stack, is_ready=True)
            write_stack(self._stack)
            log.info("everything runs")

    def _supervise(self, programs: list[Program]) -> None:
        folder = self._folders.data
        self._supervised += [
            Supervised(program, self._stack.id, self._folders.log(program.name), folder) for program in programs
        ]

    def _until_done(self, steps: Mapping[str, Callable[[], None]]) -> bool:
        """Do each step as soon as the server of its name runs, or at once where that is an outside one.

        False when asked to stop before all are done. Raises the error of a step.
        """
        begun: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(len(steps)) as pool:
            while not self._stopping.is_set():
                self._step()
                starting = {
                    process.record.name for process in self._supervised if process.record.state is not State.RUNNING
                }
                for name in steps.keys() - begun.keys() - starting:
                    begun[name] = pool.submit(steps[name])
                done = [step.result() for step in begun.values() if step.done()]
                if len(done) == len(steps):
                    return True
        return False

    def _until_running(self) -> bool:
        """Step until every process runs. False when asked to stop before that."""
        while not self._stopping.is_set():
            self._step()
            if all(process.record.state is State.RUNNING for process in self._supervised):
                return True
        return False

    def _step(self) -> None:
        for process in self._supervised:
            if (self._is_usable or process.is_early) and process.step(time.monotonic()):
                log.info("%s", _described(process.record))
                # At once: an unrecorded process could not be found after a crash of this one.
                self._stack = replace(self._stack, processes=tuple(process.record for process in self._supervised))
                write_stack(self._stack)
        self._stopping.wait(STEP_SECONDS if self._stack.is_ready else FIRST_STEPS_SECONDS)

    def _migrate(self, url: str, *, is_embedded: bool) -> None:
        log.info("migrating the database")
        # The operator of an outside server sets the passwords of its roles.
        reader = {"WEIR_DASHBOARD_PASSWORD": reader_password(self._folders)} if is_embedded else {}
        output = self._folders.log("migrations")
        with open_log(output) as file:
            answer = subprocess.run(
                [sys.executable, "-m", "jobs", "migrate"],
                cwd=self._folders.data,
                env={**os.environ, **reader, POSTGRES_VARIABLE: url, STACK_VARIABLE: self._stack.id},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
            )
        if answer.returncode != 0:
            last_line = "".join(last_lines(output, 1))
            raise CannotRun(f"The database could not be migrated (all of it is in {output}): {last_line}")


def _prepare(programs: Sequence[Program]) -> None:
    """Make what each program needs for its first start, all at the same time: each takes a second of one core.

    What does not succeed is done again when the program is started, which says why it cannot.
    """
    with ThreadPoolExecutor(max(1, len(programs))) as pool:
        for preparing in [pool.submit(program.command) for program in programs]:
            with suppress(CannotRun):
                preparing.result()


def _described(process: Process) -> str:
    if process.state is State.RESTARTING:
        how = "could not start" if process.exit_status is None else f"ended with {process.exit_status}"
        return f"{process.name} {how} and is started again: {process.message}"
    return f"{process.name} is {process.state}"


def recover(data_dir: Path) -> None:
    """Stop what a crashed supervisor left running: the processes it had written down, and nothing else."""
    stack = read_stack(data_dir)
    if stack is not None:
        log.info("a crashed stack is stopped first")
        stop_processes(stack, log.info)
        remove_stack(data_dir)


def main(data_dir: Path) -> int:
    """Run a stack until SIGTERM or SIGINT; the caller has locked the folder and hands the lock over. Exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    recover(data_dir)
    this = ProcessId.of(os.getpid())
    assert this is not None, "a running process has an identity"
    try:
        Supervisor(Stack(uuid.uuid4().hex, data_dir, this), stopping).run()
    except CannotRun as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
