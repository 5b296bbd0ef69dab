"""What the tests share: one Spark session and one Postgres server per run, one fresh database per test."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

import laptop.database
import laptop.ports
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate
from jobs.runtime.spark import spark_session
from laptop.class_archive import submit_arguments
from laptop.database import embedded_database
from laptop.jars import connector_jars
from tests.few_in_ci import leave_to_long
from tests.job_roles import make_job_roles, take_as_the_role
from tests.next_release import AHEAD, migrate_ahead
from tests.ports import claim_ports
from tests.quick_server import make_quick, read_migrations_once
from tests.turns import begin_elsewhere, take_turns

# How long one example takes says how busy the machine is, and nothing about the rule.
settings.register_profile("weir", deadline=None)
settings.load_profile("weir")

TEMPLATE = "weir_template"
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
"""Nothing here runs long enough for Java's second compiler to pay: without it a driver's start and first batches take
24 CPU-s instead of 34."""

os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
"""Delta tables of a few rows: handing each read to a pool of threads costs a quarter of an audit's CPU here."""

SHARED_MEMORY, ROOM_BYTES = Path("/dev/shm"), 8 << 30
if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= ROOM_BYTES:
    # Making and dropping a test's database takes 0.3 s on a disk that discards what is deleted, and 0.04 s in memory.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))


read_migrations_once()

laptop.ports.server_ports, PORTS_CLAIM = claim_ports()
"""A server listens some time after its port was chosen: until then nobody else chooses it."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: looking for garbage among it took a fifth of a worker's start, and some of every test.

    Afterwards it is looked for seldom: of short tests little is left.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Each worker of pytest-xdist begins elsewhere."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        begin_elsewhere(config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Directories take turns, and CI leaves cases to `make long`."""
    take_turns(items)
    leave_to_long(items)


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder with Spark's connectors."""
    return connector_jars()


@pytest.fixture(scope="session")
def spark(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of a test run: two cores, UTC, Kafka and Delta."""
    os.environ.update(submit_arguments())
    warehouse = tmp_path_factory.mktemp("spark-warehouse")
    session = spark_session(
        "weir-tests", jars, master="local[2]", memory_mib=1024, conf={"spark.sql.warehouse.dir": str(warehouse)}
    )
    yield session
    session.stop()


if OTHER_POSTGRES := os.environ.get("WEIR_TESTS_POSTGRES", ""):
    # The folder with the programs of another version of Postgres, for all servers that tests start in their process.
    def _program(name: str) -> Path:
        return Path(OTHER_POSTGRES, name)

    laptop.database.program = _program


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running, migrated database of a server that lives as long as the test run. Shared: write to `database`."""
    with embedded_database(tmp_path_factory.mktemp("postgres"), timeout_seconds=120) as url:
        make_quick(url)
        make_job_roles(url)
        migrate(url)
        if AHEAD:
            migrate_ahead(url)
        with psycopg.connect(_named(url, "postgres"), autocommit=True) as server:
            # A template to which nobody is connected: making a test's database from it takes no migration.
            server.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE weir")
        # The first session of a database lists the server's own tables for the next ones; copies have that list, too.
        psycopg.connect(_named(url, TEMPLATE)).close()
        yield url


@pytest.fixture(autouse=True)
def drivers_have_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that a test starts writes as its application's role: a grant that is missing fails the test."""
    monkeypatch.setattr(Ownership, "take", take_as_the_role)


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """The address of a fresh, migrated database; dropped after the test."""
    with fresh_database(postgres_url) as url:
        yield url


@contextmanager
def fresh_database(postgres_url: str) -> Iterator[str]:
    """As `database`, for a test that needs several."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(_named(postgres_url, "postgres"), autocommit=True) as server:
        # Its files are copied, not its pages through the log: half of the CPU.
        server.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
        yield _named(postgres_url, name)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _named(url: str, database: str) -> str:
    return urlsplit(url)._replace(path=f"/{database}").geturl()
