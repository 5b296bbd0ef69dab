"""The Kafka broker: Apache Kafka itself, one KRaft node in a data folder, on the loopback address by default."""

from __future__ import annotations

import base64
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from deployment.errors import CannotRun
from deployment.topic_list import RETENTION_HOURS
from laptop.java import archive_of, class_sharing, find_java
from laptop.ports import LOOPBACK

HEAP_MIB = 256


class BrokerUnusable(CannotRun):
    """The broker cannot be made here; the message says what to change."""


@dataclass(frozen=True)
class BrokerPorts:
    """Clients and KRaft's own quorum are served apart.

    `host` is the address that clients are served on; `advertised` (host:port) how they find it, if that is another.
    """

    clients: int
    controller: int
    host: str = LOOPBACK
    advertised: str = ""

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return self.advertised or f"{self.host}:{self.clients}"


def prepare(folder: Path, jars: Path, ports: BrokerPorts) -> None:
    """Write the configuration and format the log folder unless it is. Raises `BrokerUnusable`."""
    folder.mkdir(parents=True, exist_ok=True)
    _properties_file(folder).write_text(_properties(folder / "log", ports), encoding="utf-8")
    if (folder / "log" / "meta.properties").exists():
        return
    command = _java(jars, folder, "kafka.tools.StorageTool", "-XX:TieredStopAtLevel=1")
    answer = subprocess.run(
        [*command, "format", "--cluster-id", _cluster_id(), "--config", str(_properties_file(folder))],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise BrokerUnusable(f"Kafka could not format {folder / 'log'}:\n{answer.stderr.strip() or answer.stdout}")


def server_command(folder: Path, jars: Path) -> list[str]:
    """The broker's command line; it runs in the foreground and stops cleanly on SIGTERM."""
    return [*_java(jars, folder, "kafka.Kafka"), str(_properties_file(folder))]


def _cluster_id() -> str:
    # Kafka refuses ids that start with a dash.
    while (encoded := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return encoded


def _properties_file(folder: Path) -> Path:
    return folder / "server.properties"


def _properties(log: Path, ports: BrokerPorts) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "listeners": f"CLIENTS://{ports.host}:{ports.clients},CONTROLLER://{LOOPBACK}:{ports.controller}",
        "advertised.listeners": f"CLIENTS://{ports.bootstrap}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": log.resolve(),
        "log.retention.hours": RETENTION_HOURS,
        "auto.create.topics.enable": "false",
        "default.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _java(jars: Path, folder: Path, main: str, *options: str) -> list[str]:
    return [
        str(find_java()),
        *class_sharing(archive_of("broker", jars)),
        f"-Xmx{HEAP_MIB}m",
        *options,
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dkafka.logs.dir={folder.resolve()}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSX",
        "-cp",
        f"{jars}/*",
        main,
    ]
