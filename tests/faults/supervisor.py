"""`python -m tests.faults.supervisor FOLDER`: what `weir up` runs, except that drivers reach the servers by proxies."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path

from deployment.processes import ProcessId
from deployment.stack import Stack
from laptop.programs import Program
from laptop.supervisor import Supervisor
from metering.vocabulary import ALWAYS

DRIVERS_VARIABLE = "WEIR_FAULTS_DRIVERS"
"""JSON: environment variables that drivers get in place of the supervisor's."""


class ProxiedSupervisor(Supervisor):
    """A supervisor whose drivers reach everything by other addresses than itself."""

    def _supervise(self, programs: list[Program]) -> None:
        variables = json.loads(os.environ[DRIVERS_VARIABLE])
        super()._supervise(
            [
                replace(program, environment={**program.environment, **variables})
                if program.name in list(ALWAYS)
                else program
                for program in programs
            ]
        )


def main(folder: Path, stack: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    this = ProcessId.of(os.getpid())
    assert this is not None, "a running process has an identity"
    ProxiedSupervisor(Stack(stack or uuid.uuid4().hex, folder, this), stopping).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
