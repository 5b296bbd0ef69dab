"""A real broker for one test file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from deployment import topics
from laptop import broker
from laptop.broker import BrokerPorts
from laptop.jars import broker_jars
from laptop.ports import free_ports
from tests.waiting import wait_until


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """The address of a broker with Weir's topics, which lives as long as the block."""
    clients, controller = free_ports(2)
    ports = BrokerPorts(clients, controller)
    if not (folder / "log").exists():
        shutil.copytree(Path(_formatted().name) / "log", folder / "log")
    broker.prepare(folder, broker_jars(), ports)
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(broker.server_command(folder, broker_jars()), stdout=log, stderr=log)
    try:
        wait_until(lambda: topics.answers(ports.bootstrap), "the broker answering", 180, every_seconds=0.1)
        topics.ensure_topics(ports.bootstrap)
        yield ports.bootstrap
    finally:
        process.kill()
        process.wait()


@cache
def _formatted() -> TemporaryDirectory[str]:
    """The folder of a broker that never ran: to format another one takes as much as a third of its start."""
    folder = TemporaryDirectory(prefix="weir-broker-")
    broker.prepare(Path(folder.name), broker_jars(), BrokerPorts(9092, 9093))
    return folder
