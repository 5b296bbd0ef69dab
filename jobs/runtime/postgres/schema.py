"""The Postgres schema: migrated once, by the first to start, and checked by every application."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.address import SCHEMA_VARIABLE, in_schema, schema_of
from jobs.runtime.postgres.api_reader import ensure_api_reader
from jobs.runtime.postgres.job_roles import grant_to_jobs
from jobs.runtime.postgres.own_schema import place, prepare_move
from jobs.runtime.postgres.reader_role import ensure_reader
from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS

MIGRATIONS = Path(__file__).with_name("migrations")
MIGRATION_ATTEMPTS = 5
PAUSE_SECONDS = 1.0
LOCK_TIMEOUT = "20s"
"""Longer than a driver that hangs in a transaction lasts (`ownership.IDLE_IN_TRANSACTION_LIMIT`)."""
_CONTENDED = (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable)
MIGRATION_LOCK = 0x57656972
"""Key of the advisory lock that lets one process migrate at a time: "Weir" in ASCII."""


def migrate(
    url: str,
    reader_password: str | None = None,
    lock_timeout: str = LOCK_TIMEOUT,
    pause_seconds: float = PAUSE_SECONDS,
) -> None:
    """Bring the schema to this version's, in one transaction: wholly or not at all; nothing to do is no error.

    `url` is anything libpq takes, and names Weir's own schema as `address.in_schema` says; with `reader_password` the
    dashboard's role may log in. Raises `sqlalchemy.exc.DBAPIError` or `psycopg.Error` when the server or a step
    refuses, Refused where the schema cannot be used.

    Drivers that run meanwhile lock tables in another order. Where the server ends this session for a deadlock with one,
    or a table is not free within `lock_timeout`, it begins again, up to MIGRATION_ATTEMPTS times: who comes after a
    migration that waits for a lock waits for it, too.
    """
    for left in reversed(range(MIGRATION_ATTEMPTS)):
        try:
            _migrate(url, reader_password, lock_timeout)
            return
        except (DBAPIError, *_CONTENDED) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if left == 0 or not isinstance(cause, _CONTENDED):
                raise
            time.sleep(pause_seconds)


def _migrate(url: str, reader_password: str | None, lock_timeout: str) -> None:
    with migrator(url, lock_timeout) as config:
        command.upgrade(config, "head")
        driver, schema = _driver(config.attributes["connection"]), config.attributes["schema"]
        ensure_reader(driver, schema, reader_password)
        ensure_api_reader(driver, schema)
        grant_to_jobs(driver, schema)


@contextmanager
def migrator(url: str, lock_timeout: str = LOCK_TIMEOUT) -> Iterator[Config]:
    """What Alembic's commands work on: one transaction in Weir's own schema, while no other process migrates."""
    url = in_schema(url)
    schema = schema_of(url)
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        # Until this session ends: others that migrate at the same moment find it done.
        connection.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        prepare_move(connection, schema)
    with _engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
        place(_driver(connection), schema)
        config = _config()
        config.attributes.update(connection=connection, schema=schema)
        yield config


def schema_is_current(url: str) -> bool:
    """Whether the database has exactly this version's tables: neither older nor newer.

    Raises Refused where sessions do not begin in Weir's own schema: they would read tables of others.
    """
    url = in_schema(url)
    schema = schema_of(url)
    with _engine(url).connect() as connection:
        applied = MigrationContext.configure(connection, opts={"version_table_schema": schema}).get_current_heads()
        begins = connection.scalar(text("SELECT current_schema()"))
    if applied and begins != schema:
        raise Refused(
            f"sessions begin in the schema {begins}, though WEIR_POSTGRES_URL and {SCHEMA_VARIABLE} name {schema}: a "
            "pooler that drops the option search_path must pass it on, or the role must have it (ALTER ROLE … SET)"
        )
    return set(applied) == set(ScriptDirectory.from_config(_config()).get_heads())


def refuse_other_schema(url: str) -> None:
    """Raises Refused unless the database has exactly this version's schema."""
    if not schema_is_current(url):
        raise Refused(
            "the database does not have this version's schema; run `python -m jobs migrate` (`weir up` and "
            "`helm upgrade` do it), or, if a newer version migrated it, install that version"
        )


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _config() -> Config:
    config = Config()
    # The option is interpolated by configparser, so a percent sign in the path is doubled.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _engine(url: str) -> Engine:
    # Handing over the connection keeps every form of libpq's address working, not only SQLAlchemy's own.
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_SECONDS),
        poolclass=NullPool,
    )
