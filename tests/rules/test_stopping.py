"""A driver that is asked to stop ends in order where it can, and soon in any case."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

STUCK = """
import threading, time
from jobs.runtime.run import stop_on_signals

stopping = threading.Event()
stop_on_signals(stopping, limit_seconds=5)
print("ready", flush=True)
stopping.wait()
print("stopping", flush=True)
time.sleep(600)
"""


def test_a_driver_waiting_for_a_stopped_server_can_be_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        began = time.monotonic()
        driver.send_signal(signal.SIGTERM)
        assert driver.stdout.readline() == "stopping\n"
        assert driver.wait(timeout=60) == 0
        assert time.monotonic() - began >= 4.5, "it was given no time to end in order"
