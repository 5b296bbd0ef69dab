"""`python -m jobs.restart COMMAND …`: restarts a driver that crashed in its own pod.

The Spark Operator waits longer with every start in an application's life, so what another start may mend is not left
to it, unless ten minutes of starts have not: another pod reads its Secrets again, has empty scratch space, and may be
on another node. How a driver ended by its own decision is passed on. SIGHUP ends it and starts it with changed code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from jobs.backoff import Backoff

DECIDED = (0, 2, 3, 4)
"""Stopped, badly configured, refused, fenced: `jobs.runtime.errors.ExitStatus` without crashed."""
MAX_CRASHES = 20
"""In a row, each within a minute of its start: with the pauses between them about ten minutes."""


def keep_running(command: list[str], max_crashes: int = MAX_CRASHES) -> int:
    """Run until asked to stop, or until it ends by its own decision or has crashed so often in a row.

    Returns the exit status to end with.
    """
    stopping, reloading = threading.Event(), threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, _: object) -> None:
        stopping.set()
        reloading.set()
        if child is not None:
            child.send_signal(number)

    def reload(*_: object) -> None:
        reloading.set()
        if child is not None:
            child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, reload)
    backoff = Backoff()
    while not stopping.is_set():
        started = time.monotonic()
        reloading.clear()
        child = subprocess.Popen(command, start_new_session=True)
        if stopping.is_set():
            child.terminate()
        status = child.wait()
        with suppress(ProcessLookupError):
            # A Java whose Python is gone would go on writing beside its successor.
            os.killpg(child.pid, signal.SIGKILL)
        if reloading.is_set() and not stopping.is_set():
            continue
        if stopping.is_set() or status in DECIDED:
            return status if status >= 0 else 128 - status
        backoff = backoff.after(time.monotonic() - started)
        if backoff.failures >= max_crashes:
            print(f"The driver ended {max_crashes} times in a row; its pod ends, too.", file=sys.stderr)
            return status if status >= 0 else 128 - status
        print(
            f"The driver ended with status {status}; it starts again in {backoff.delay_seconds:g} s.", file=sys.stderr
        )
        reloading.wait(backoff.delay_seconds)
    return 0


if __name__ == "__main__":
    sys.exit(keep_running(sys.argv[1:]))
