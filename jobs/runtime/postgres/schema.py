"""The Postgres schema: migrated once, by the first to start, and checked by every application that writes.

A version runs on its own schema, and on a newer one where that lets it (`older_releases`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
import structlog
from alembic import command
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.address import SCHEMA_VARIABLE, in_schema, schema_of
from jobs.runtime.postgres.api_reader import ensure_api_reader
from jobs.runtime.postgres.downgrade import USES, Use
from jobs.runtime.postgres.job_roles import grant_to_jobs
from jobs.runtime.postgres.migration_files import MIGRATIONS
from jobs.runtime.postgres.migrator import LOCK_TIMEOUT, alembic_config, driver_of, engine, migrator
from jobs.runtime.postgres.older_releases import publish, refusal
from jobs.runtime.postgres.reader_role import ensure_reader, set_reader_password

__all__ = ["MIGRATIONS", "migrate", "migrator", "schema_is_current", "schema_problem"]

MIGRATION_ATTEMPTS = 5
PAUSE_SECONDS = 1.0
_CONTENDED = (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable)

log = structlog.get_logger()


def migrate(
    url: str,
    reader_password: str | None = None,
    lock_timeout: str = LOCK_TIMEOUT,
    pause_seconds: float = PAUSE_SECONDS,
    *,
    migrations: Path = MIGRATIONS,
    uses: Sequence[Use] = USES,
) -> None:
    """Bring the schema to this version's, in one transaction: wholly or not at all; nothing to do is no error.

    A newer version's schema that lets this version run stays as it is. `url` is anything libpq takes, and names Weir's
    own schema as `address.in_schema` says; with `reader_password` the dashboard's role may log in. `migrations`, a
    folder of Alembic's, and `uses` are those of the version that migrates. Raises `sqlalchemy.exc.DBAPIError` or
    `psycopg.Error` when the server or a step refuses, Refused where the schema cannot be used.

    Drivers that run meanwhile lock tables in another order. Where the server ends this session for a deadlock with one,
    or a table is not free within `lock_timeout`, it begins again, up to MIGRATION_ATTEMPTS times: who comes after a
    migration that waits for a lock waits for it, too.
    """
    for left in reversed(range(MIGRATION_ATTEMPTS)):
        try:
            _migrate(url, reader_password, lock_timeout, migrations, uses)
            return
        except (DBAPIError, *_CONTENDED) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if left == 0 or not isinstance(cause, _CONTENDED):
                raise
            time.sleep(pause_seconds)


def _migrate(url: str, reader_password: str | None, lock_timeout: str, migrations: Path, uses: Sequence[Use]) -> None:
    with migrator(url, lock_timeout, migrations=migrations) as config:
        connection, schema = config.attributes["connection"], config.attributes["schema"]
        driver, scripts = driver_of(connection), ScriptDirectory.from_config(config)
        applied = _applied(connection, schema)
        if _is_newer(scripts, applied):
            if (problem := _problem(connection, schema, scripts, applied)) is not None:
                raise Refused(problem)
            # Tables, grants and roles are the newer version's; a password is whose who deploys.
            set_reader_password(driver, reader_password)
            log.info("the schema is a newer version's and lets this one run: it stays as it is", schema=applied)
            return
        command.upgrade(config, "head")
        ensure_reader(driver, schema, reader_password)
        ensure_api_reader(driver, schema)
        grant_to_jobs(driver, schema)
        publish(driver, schema, scripts, uses)


def schema_is_current(url: str) -> bool:
    """Whether the database has exactly this version's tables: neither older nor newer.

    Raises Refused where sessions do not begin in Weir's own schema: they would read tables of others.
    """
    url = in_schema(url)
    with engine(url).connect() as connection:
        return _applied(connection, schema_of(url)) == _newest(ScriptDirectory.from_config(alembic_config()))


def schema_problem(url: str, *, migrations: Path = MIGRATIONS) -> str | None:
    """Why the version of these migrations cannot run on the database's schema, with what to do; None where it can.

    Raises Refused where sessions do not begin in Weir's own schema: they would read tables of others.
    """
    url = in_schema(url)
    schema = schema_of(url)
    with engine(url).connect() as connection:
        applied = _applied(connection, schema)
        return _problem(connection, schema, ScriptDirectory.from_config(alembic_config(migrations)), applied)


def _problem(connection: Connection, schema: str, scripts: ScriptDirectory, applied: str | None) -> str | None:
    newest = _newest(scripts)
    if applied == newest:
        return None
    if not _is_newer(scripts, applied):
        return (
            "the database does not have this version's schema; run `python -m jobs migrate` (`weir up` and "
            "`helm upgrade` do it)"
        )
    if (reason := refusal(driver_of(connection), schema, newest)) is None:
        return None
    return (
        f"a newer version of Weir has brought the database to the schema {applied}, on which this one cannot run "
        f"({reason}): install that version again, or let it bring the schema back first: "
        f"`python -m jobs migrate --down-to {newest}`"
    )


def _applied(connection: Connection, schema: str) -> str | None:
    """The newest migration in the database; None without any."""
    context = MigrationContext.configure(connection, opts={"version_table_schema": schema})
    applied = context.get_current_revision()
    begins = connection.scalar(text("SELECT current_schema()"))
    if applied is not None and begins != schema:
        raise Refused(
            f"sessions begin in the schema {begins}, though WEIR_POSTGRES_URL and {SCHEMA_VARIABLE} name {schema}: a "
            "pooler that drops the option search_path must pass it on, or the role must have it (ALTER ROLE … SET)"
        )
    return applied


def _newest(scripts: ScriptDirectory) -> str:
    newest = scripts.get_current_head()
    assert newest is not None, "there are migrations, in one line"
    return newest


def _is_newer(scripts: ScriptDirectory, applied: str | None) -> bool:
    """Whether this version does not have that migration."""
    return applied is not None and applied not in {script.revision for script in scripts.walk_revisions()}
