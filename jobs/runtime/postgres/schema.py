"""The Postgres schema: brought up to date once, by whoever starts first, and checked by every application."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.reader_role import ensure_reader
from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS

MIGRATIONS = Path(__file__).with_name("migrations")
MIGRATION_LOCK = 0x57656972
"""Key of the advisory lock that lets one process migrate at a time: "Weir" in ASCII."""


def migrate(url: str, reader_password: str | None = None) -> None:
    """Bring the schema to this version's, in one transaction: wholly or not at all; nothing to do is no error.

    `url` is anything libpq takes; with `reader_password` the dashboard's role may log in. Raises
    `sqlalchemy.exc.DBAPIError` or `psycopg.Error` when the server or a step refuses.
    """
    with migrator(url) as config:
        command.upgrade(config, "head")
        driver = config.attributes["connection"].connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        ensure_reader(driver, reader_password)


@contextmanager
def migrator(url: str) -> Iterator[Config]:
    """What Alembic's commands work on: one transaction, while no other process migrates."""
    with _engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        config = _config()
        config.attributes["connection"] = connection
        yield config


def schema_is_current(url: str) -> bool:
    """Whether the database has exactly this version's schema: neither older nor newer."""
    with _engine(url).connect() as connection:
        applied = MigrationContext.configure(connection).get_current_heads()
    return set(applied) == set(ScriptDirectory.from_config(_config()).get_heads())


def refuse_other_schema(url: str) -> None:
    """Raises Refused unless the database has exactly this version's schema."""
    if not schema_is_current(url):
        raise Refused(
            "the database does not have this version's schema; run `python -m jobs migrate` (`weir up` and "
            "`helm upgrade` do it), or, if a newer version migrated it, install that version"
        )


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
