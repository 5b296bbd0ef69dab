"""A real broker for one test file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from local import broker
from local.broker import BrokerPorts
from local.jars import broker_jars
from local.ports import free_ports


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """The address of a broker that lives as long as the block, without topics."""
    clients, controller = free_ports(2)
    ports = BrokerPorts(clients, controller)
    broker.prepare(folder, broker_jars(), ports)
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(broker.server_command(folder, broker_jars()), stdout=log, stderr=log)
    try:
        AdminClient({"bootstrap.servers": ports.bootstrap, "log_level": 0}).list_topics(timeout=60)
        yield ports.bootstrap
    finally:
        process.kill()
        process.wait()
