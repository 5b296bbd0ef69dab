"""The programs of a stack: how each is started, and how one knows that it is ready."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from catalog import capture
from deployment import topics
from deployment.capture import Capturing, refuse_without_log
from deployment.job_states import JobStates
from deployment.kafka_client import kafka_access
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, TABLES_VARIABLE, postgres_url_of
from laptop import broker, connect, database
from laptop.broker import BrokerPorts
from laptop.class_archive import submit_arguments
from laptop.dashboard import dashboard_command, reader_url
from laptop.folders import Folders
from laptop.jars import broker_jars, connect_jars, connector_jars
from laptop.ports import LOOPBACK
from laptop.watching import ALERTMANAGER, MODEST, PROMETHEUS, alertmanager_command, find, prometheus_command
from metering.vocabulary import Job
from monitoring.metrics import API, PROGRAMS

READ_BY_DRIVERS = (Job.JOINS, Job.BILLING)
"""Their drivers read all that comes while they run; Spark reads only what a start finds."""
SELDOM_USED = ("-XX:TieredStopAtLevel=1",)
"""A Java that has hardly anything to do starts with two fifths less CPU if it neither profiles nor optimizes code."""


@dataclass(frozen=True)
class Program:
    """One process of a stack. `command` prepares each start and gives its command line; it may raise `CannotRun`.

    `is_ready` is called while the process starts and must return within seconds.

    Only what `is_early` is started before broker and database can be used. `on_usable` is called once at that moment,
    before anything uses them.
    """

    name: str
    command: Callable[[], Sequence[str]]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_early: bool = False
    on_usable: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Addresses:
    """Where the parts of a stack are reached. `metrics` are ports, by program. None: outside, or not installed."""

    broker: BrokerPorts | None
    kafka_bootstrap: str
    database_port: int | None
    connect_port: int
    dashboard_port: int
    api_port: int
    metrics: Mapping[str, int]
    prometheus_port: int | None = None
    alertmanager_port: int | None = None

    @property
    def prometheus_url(self) -> str:
        """Prometheus; empty without one."""
        return f"http://{LOOPBACK}:{self.prometheus_port}" if self.prometheus_port else ""

    @property
    def alertmanager_url(self) -> str:
        """Alertmanager; empty without one."""
        return f"http://{LOOPBACK}:{self.alertmanager_port}" if self.alertmanager_port else ""

    @property
    def dashboard_url(self) -> str:
        """The dashboard."""
        return f"http://{LOOPBACK}:{self.dashboard_port}"

    @property
    def api_url(self) -> str:
        """Where events are posted."""
        return f"http://{LOOPBACK}:{self.api_port}"

    @property
    def metrics_urls(self) -> dict[str, str]:
        """Prometheus metrics, by job, and of the API."""
        return {program: f"http://{LOOPBACK}:{port}/metrics" for program, port in self.metrics.items()}


def choose_addresses(folders: Folders) -> Addresses:
    """Free ports, the same as last time where they still are; an outside Kafka or Postgres by its variable."""
    outside_kafka = os.environ.get(KAFKA_VARIABLE)
    ports = None if outside_kafka else BrokerPorts(folders.reuse_port("broker"), folders.reuse_port("controller"))
    return Addresses(
        broker=ports,
        kafka_bootstrap=outside_kafka or (ports.bootstrap if ports else ""),
        database_port=None if os.environ.get(POSTGRES_VARIABLE) else folders.reuse_port("database"),
        connect_port=folders.reuse_port("connect"),
        dashboard_port=folders.reuse_port("dashboard"),
        api_port=folders.reuse_port("api"),
        metrics={program: folders.reuse_port(f"{program}-metrics") for program in PROGRAMS if folders.runs(program)},
        prometheus_port=folders.reuse_port("prometheus") if find(PROMETHEUS) else None,
        alertmanager_port=folders.reuse_port("alertmanager") if find(ALERTMANAGER) else None,
    )


def servers(folders: Folders, addresses: Addresses) -> list[Program]:
    """Broker and database, as far as they are not outside ones."""
    programs = []
    if addresses.broker is not None:
        command = partial(_broker_command, folders.broker, addresses.broker)
        is_ready = partial(_broker_answers, addresses.broker, addresses.kafka_bootstrap)
        programs.append(Program("broker", command, is_ready, is_early=True))
    if addresses.database_port is not None:
        place = (folders.database, addresses.database_port)
        is_ready = partial(database.ensure_database, *place)
        programs.append(Program("database", partial(_database_command, *place), is_ready, is_early=True))
    return programs


def postgres_url(folders: Folders, addresses: Addresses) -> str:
    """The database's address; an embedded one must have been prepared."""
    if addresses.database_port is None:
        return postgres_url_of(os.environ)
    url = database.database_url(folders.database, addresses.database_port)
    return postgres_url_of({**os.environ, POSTGRES_VARIABLE: url})


def applications(folders: Folders, addresses: Addresses, url: str) -> list[Program]:
    """What captures the catalog, the jobs, the API, what watches them, and the dashboard. `url` is the database's.

    A job is early: most of its start is Python's and Java's own, and needs neither broker nor database.
    """
    states = JobStates(url)
    capturing = Program(
        "connect",
        partial(_connect_command, folders.connect, addresses, url),
        Capturing(url).is_active,
        {capture.PASSWORD_VARIABLE: capture.password(url)},
    )
    programs = [
        Program(
            job,
            partial(_job_command, job, folders, states),
            partial(_is_working, job, folders, states),
            job_environment(
                folders,
                kafka_bootstrap=addresses.kafka_bootstrap,
                postgres_url=url,
                jars=connector_jars(),
                metrics_port=addresses.metrics[job],
                java_options=SELDOM_USED if job in READ_BY_DRIVERS else (),
            )
            | {"WEIR_STARTS_AFTER": str(folders.usable)},
            is_early=True,
            on_usable=partial(states.starting, job),
        )
        for job in Job
        if folders.runs(job)
    ]
    command = partial(dashboard_command, addresses.dashboard_port)
    is_ready = partial(_is_healthy, f"{addresses.dashboard_url}/_stcore/health")
    reads = {
        POSTGRES_VARIABLE: reader_url(folders, url, is_embedded=addresses.database_port is not None),
        TABLES_VARIABLE: str(folders.tables),
        "WEIR_PROMETHEUS_URL": addresses.prometheus_url,
        "WEIR_ALERTMANAGER_URL": addresses.alertmanager_url,
    }
    dashboard = Program("dashboard", command, is_ready, reads)
    return [capturing, *programs, api(folders, addresses, url), *watchers(folders, addresses), dashboard]


def api(folders: Folders, addresses: Addresses, postgres_url: str) -> Program:
    """What takes events over HTTP, and answers questions. It runs before ingestion does, and answers 503 until then."""
    environment = {
        KAFKA_VARIABLE: addresses.kafka_bootstrap,
        POSTGRES_VARIABLE: postgres_url,
        TABLES_VARIABLE: str(folders.tables),
        # Its batches are small: a second thread costs more than it saves.
        "POLARS_MAX_THREADS": "1",
        "WEIR_API_HOST": LOOPBACK,
        "WEIR_API_PORT": str(addresses.api_port),
        "WEIR_METRICS_PORT": str(addresses.metrics[API]),
    }
    is_ready = partial(_is_healthy, f"{addresses.api_url}/health/live")
    return Program("api", lambda: [sys.executable, "-m", "api"], is_ready, environment)


def webhook_sender(postgres_url: str) -> list[Program]:
    """What sends webhooks, if there is an endpoint. On a laptop the receiver may be on it, too."""
    # Not before the servers have been started, which wait for all other imports.
    from webhooks import endpoints
    from webhooks.__main__ import ALLOW_PRIVATE_VARIABLE

    if not endpoints.listed(postgres_url):
        return []
    environment = {POSTGRES_VARIABLE: postgres_url, ALLOW_PRIVATE_VARIABLE: "true"}
    return [Program("webhooks", lambda: [sys.executable, "-m", "webhooks"], lambda: True, environment)]


def watchers(folders: Folders, addresses: Addresses) -> list[Program]:
    """Alertmanager and Prometheus, as far as they are installed."""
    programs = []
    if (port := addresses.alertmanager_port) is not None:
        is_ready = partial(_is_healthy, f"{addresses.alertmanager_url}/-/ready")
        programs.append(Program("alertmanager", partial(alertmanager_command, folders, port), is_ready, MODEST))
    if (port := addresses.prometheus_port) is not None:
        runbook = f"{addresses.dashboard_url}/runbook"
        token = os.environ.get("WEIR_METRICS_TOKEN", "").strip()
        command = partial(
            prometheus_command, folders, port, addresses.metrics, addresses.alertmanager_port, runbook, token=token
        )
        is_ready = partial(_is_healthy, f"{addresses.prometheus_url}/-/ready")
        programs.append(Program("prometheus", command, is_ready, MODEST))
    return programs


def job_environment(
    folders: Folders,
    *,
    kafka_bootstrap: str,
    postgres_url: str,
    jars: Path,
    metrics_port: int = 0,
    java_options: Sequence[str] = (),
) -> dict[str, str]:
    """The `WEIR_*` variables of one job; metrics port 0 takes a free one. `java_options` are added to usual ones."""
    return {
        KAFKA_VARIABLE: kafka_bootstrap,
        POSTGRES_VARIABLE: postgres_url,
        TABLES_VARIABLE: str(folders.tables),
        "WEIR_CHECKPOINTS": str(folders.checkpoints),
        "WEIR_JARS": str(jars),
        "WEIR_METRICS_PORT": str(metrics_port),
        "PYTHONUNBUFFERED": "1",
        **submit_arguments(*java_options),
    }


def _broker_command(folder: Path, ports: BrokerPorts) -> list[str]:
    jars = broker_jars()
    broker.prepare(folder, jars, ports)
    return broker.server_command(folder, jars)


def _database_command(folder: Path, port: int) -> list[str]:
    database.prepare(folder)
    return database.server_command(folder, port)


def _connect_command(folder: Path, addresses: Addresses, postgres_url: str) -> list[str]:
    jars = connect_jars()
    refuse_without_log(postgres_url)
    worker = connect.Worker(kafka_access(addresses.kafka_bootstrap), addresses.connect_port)
    connect.prepare(folder, worker, capture.CONNECTOR, capture.connector(postgres_url, os.environ))
    return connect.server_command(folder, jars, worker)


def _job_command(job: str, folders: Folders, states: JobStates) -> list[str]:
    if folders.usable.exists():
        states.starting(job)
    return [sys.executable, "-m", "jobs", job, "--config", str(folders.config(job))]


def _is_working(job: str, folders: Folders, states: JobStates) -> bool:
    return folders.usable.exists() and states.is_working(job)


def _broker_answers(ports: BrokerPorts, bootstrap: str) -> bool:
    # Kafka's client would wait two seconds for a broker that does not listen yet, and the supervisor for it.
    with suppress(OSError), socket.create_connection((LOOPBACK, ports.clients), timeout=2):
        return topics.answers(bootstrap)
    return False


def _is_healthy(url: str) -> bool:
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2) as answer:
        return bool(answer.status == 200)
    return False
