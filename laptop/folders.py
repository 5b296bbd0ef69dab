"""The places below a data folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import yaml

from jobs.ingestion.event_topic_settings import topics_in
from laptop.ports import reuse_port
from metering.vocabulary import Job

UMASK = 0o066
"""Of all processes of a stack: nobody else reads their files. Folders stay passable, for Postgres's own user."""


def open_log(file: Path) -> BinaryIO:
    """Open a log to append to it. Only its owner may read it, also if an earlier release has made it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
    os.fchmod(log.fileno(), 0o600)
    return log


@dataclass(frozen=True)
class Folders:
    """Where a stack keeps what. `data` is absolute: the processes do not run in the caller's folder."""

    data: Path

    @property
    def demo_config(self) -> Path:
        """How `weir demo` was configured, if it has run here: its prices and contracts need that for as long as they
        are here.
        """
        return self.data / "demo.yaml"

    @property
    def broker(self) -> Path:
        """Kafka's configuration and log."""
        return self.data / "kafka"

    @property
    def connect(self) -> Path:
        """Kafka Connect's configuration; what it has done it keeps in Kafka."""
        return self.data / "connect"

    @property
    def database(self) -> Path:
        """The embedded Postgres cluster and its password."""
        return self.data / "postgres"

    @property
    def tables(self) -> Path:
        """Root of the Delta tables."""
        return self.data / "tables"

    @property
    def checkpoints(self) -> Path:
        """Spark's checkpoints: scratch."""
        return self.data / "checkpoints"

    @property
    def prometheus(self) -> Path:
        """Prometheus's configuration, rules and data."""
        return self.data / "prometheus"

    @property
    def alertmanager_config(self) -> Path:
        """The receivers of Alertmanager, as the stack was started with."""
        return self.data / "config" / "alertmanager.yml"

    @property
    def lock(self) -> Path:
        """Locked by the supervisor for as long as it lives."""
        return self.data / "lock"

    @property
    def usable(self) -> Path:
        """There from when broker and database can be used: applications that start before that wait for it."""
        return self.data / "usable"

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.data / "logs" / f"{name}.log"

    def config(self, job: str) -> Path:
        """The configuration that a job was started with."""
        return self.data / "config" / f"{job}.yaml"

    def event_topics(self) -> tuple[str, ...]:
        """The topics of events that ingestion is started with."""
        file = self.config(Job.INGESTION)
        return topics_in(yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None)

    def wants_ordered_events(self) -> bool:
        """Whether billing is started to publish events in the order of their time."""
        file = self.config(Job.BILLING)
        config = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
        return (config or {}).get("ordered_events") is not None

    def runs(self, program: str) -> bool:
        """Whether this program is one of the stack: analytics is none without a view."""
        return program != Job.ANALYTICS or self.config(program).exists()

    def reuse_port(self, name: str) -> int:
        """The port of a server: the one of last time while it is free."""
        return reuse_port(self.data / "ports" / name)
