"""Kafka Connect: one distributed worker, which keeps what it has done in Kafka, with the connector it runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from catalog.capture import PASSWORD_VARIABLE
from jobs.runtime.kafka.access import KafkaAccess
from laptop.java import archive_of, class_sharing, find_java
from laptop.ports import LOOPBACK

HEAP_MIB = 192
FLUSH_MS = 1_000
"""How soon Postgres learns that Kafka has a change, and so does every command that waits for that."""

SESSION_MS = 6_000
"""The least that brokers allow: as long a worker that was killed keeps its work from its successor."""

GROUP = "weir-connect"
TOPICS = {"config": f"{GROUP}-configs", "offset": f"{GROUP}-offsets", "status": f"{GROUP}-status"}
"""What its workers have done, and will do."""
TOPICS_HOLD = {
    "config": "the connector's configuration",
    "offset": "how far the connector has read Postgres' log",
    "status": "whether the connector runs, and its last error",
}

_JSON = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True)
class Worker:
    """How a worker reaches Kafka, and the port of its REST interface on the loopback address."""

    kafka: KafkaAccess
    port: int

    @property
    def url(self) -> str:
        """Its REST interface, for this machine alone."""
        return f"http://{LOOPBACK}:{self.port}"


def prepare(folder: Path, worker: Worker, name: str, connector: Mapping[str, str]) -> None:
    """Write the worker's configuration, readable by its owner only, and that of its connector."""
    folder.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(_properties(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(f"{key}={value}\n" for key, value in _settings(worker).items())
    _connector(folder).write_text(json.dumps({"name": name, "config": dict(connector)}), encoding="utf-8")


def server_command(folder: Path, jars: Path, worker: Worker) -> list[str]:
    """The command line of the worker, and of who keeps its connector running; it ends when the worker does."""
    java = [
        str(find_java()),
        *class_sharing(archive_of("connect", jars)),
        f"-Xmx{HEAP_MIB}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSX",
        "-cp",
        f"{jars}/*",
        "org.apache.kafka.connect.cli.ConnectDistributed",
        str(_properties(folder)),
    ]
    return [sys.executable, "-m", "laptop.connect_worker", worker.url, str(_connector(folder)), *java]


def _properties(folder: Path) -> Path:
    return folder / "worker.properties"


def _connector(folder: Path) -> Path:
    return folder / "connector.json"


def _settings(worker: Worker) -> dict[str, str | int]:
    access = {name.removeprefix("kafka."): value for name, value in worker.kafka.spark().items() if "kafka." in name}
    clients = {f"{kind}{name}": value for kind in ("", "producer.", "admin.") for name, value in access.items()}
    return {
        **clients,
        "group.id": GROUP,
        **{f"{what}.storage.topic": topic for what, topic in TOPICS.items()},
        **settings_of_any(),
        "listeners": worker.url,
        "plugin.discovery": "service_load",
    }


def settings_of_any() -> dict[str, str | int]:
    """The settings of every worker that captures the catalog, on a laptop or a cluster."""
    return {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": SESSION_MS // 3,
        # A worker that returns gets its tasks at once.
        "scheduled.rebalance.max.delay.ms": 0,
        **{f"{what}.storage.replication.factor": -1 for what in TOPICS},
        "offset.storage.partitions": 1,
        "status.storage.partitions": 1,
        "offset.flush.interval.ms": FLUSH_MS,
        "key.converter": _JSON,
        "value.converter": _JSON,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "topic.creation.enable": "false",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        # A connector's configuration may name this variable and no other: its place, a topic, may have other writers.
        "config.providers.env.param.allowlist.pattern": PASSWORD_VARIABLE,
        # Nor may it bring settings of its own for the worker's clients.
        "connector.client.config.override.policy": "None",
    }
