"""A real broker whose clock is ours to set, by Debian's package `faketime`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployment.topics import answers
from laptop.broker import BrokerPorts, prepare, server_command
from laptop.jars import broker_jars
from laptop.ports import reuse_port
from tests.waiting import wait_until

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@dataclass(frozen=True)
class ClockedBroker:
    """`bootstrap`: where it is reached."""

    bootstrap: str
    offset_file: Path

    def set_ahead(self, seconds: int) -> None:
        """Let the broker's clock be this far ahead of the machine's, from now on."""
        self.offset_file.write_text(f"+{seconds}s\n")


@contextmanager
def clocked_broker(folder: Path) -> Iterator[ClockedBroker]:
    """A broker whose clock is right until it is set."""
    if not LIBRARIES:
        pytest.skip("the broker's clock cannot be set: install the package `faketime`")
    ports = BrokerPorts(reuse_port(folder / "clients"), reuse_port(folder / "controller"))
    broker = ClockedBroker(ports.bootstrap, folder / "offset")
    broker.set_ahead(0)
    prepare(folder / "kafka", broker_jars(), ports)
    faked = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(broker.offset_file),
        "FAKETIME_NO_CACHE": "1",
        # Java waits by the monotonic clock: only the time of day is set.
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
    with (folder / "broker.log").open("ab") as log:
        server = subprocess.Popen(
            server_command(folder / "kafka", broker_jars()), env={**os.environ, **faked}, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: answers(ports.bootstrap), "the broker answering", seconds=60)
        yield broker
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
