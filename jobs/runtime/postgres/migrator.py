"""What Alembic's commands work on: one session in Weir's own schema, while no other process migrates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import NullPool

from jobs.runtime.postgres.address import in_schema, schema_of
from jobs.runtime.postgres.migration_files import MIGRATIONS
from jobs.runtime.postgres.own_schema import place, prepare_move
from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS

LOCK_TIMEOUT = "20s"
"""Longer than a driver that hangs in a transaction lasts (`ownership.IDLE_IN_TRANSACTION_LIMIT`)."""
MIGRATION_LOCK = 0x57656972
"""Key of the advisory lock that lets one process migrate at a time: "Weir" in ASCII."""


@contextmanager
def migrator(url: str, lock_timeout: str = LOCK_TIMEOUT, *, migrations: Path = MIGRATIONS) -> Iterator[Config]:
    """What Alembic's commands work on: one transaction in Weir's own schema, while no other process migrates."""
    url = in_schema(url)
    schema = schema_of(url)
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        # Until this session ends: others that migrate at the same moment find it done.
        connection.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        prepare_move(connection, schema)
    with engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
        place(driver_of(connection), schema)
        config = alembic_config(migrations)
        config.attributes.update(connection=connection, schema=schema)
        yield config


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """The connection of psycopg below SQLAlchemy's."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def alembic_config(migrations: Path = MIGRATIONS) -> Config:
    """Where Alembic finds the migrations: this version's, or those of another in a folder like it."""
    config = Config()
    # The option is interpolated by configparser, so a percent sign in the path is doubled.
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config


def engine(url: str) -> Engine:
    """SQLAlchemy's way to a database, without a pool."""
    # Handing over the connection keeps every form of libpq's address working, not only SQLAlchemy's own.
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_SECONDS),
        poolclass=NullPool,
    )
