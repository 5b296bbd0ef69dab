"""Whether this version runs on the database's schema, which each application that writes asks before it begins.

Nearly always the database has exactly this version's. To see that takes one statement, and not Alembic, which is a
seventh of what a driver imports.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
from psycopg import sql

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.address import in_schema, schema_of
from jobs.runtime.postgres.migration_files import MIGRATIONS, newest_revision
from jobs.runtime.postgres.relations import VERSION_TABLE
from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS


def refuse_other_schema(url: str, *, migrations: Path = MIGRATIONS) -> None:
    """Raises Refused unless the database has this version's schema, or a newer one that lets this version run."""
    if has_newest(url, migrations):
        return
    from jobs.runtime.postgres import schema  # loads Alembic

    if (problem := schema.schema_problem(url, migrations=migrations)) is not None:
        raise Refused(problem)


def has_newest(url: str, migrations: Path = MIGRATIONS) -> bool:
    """Whether the newest of these migrations was the database's last one, and sessions begin in Weir's own schema."""
    url = in_schema(url)
    schema = schema_of(url)
    versions = sql.SQL("SELECT version_num, current_schema() FROM {}").format(sql.Identifier(schema, VERSION_TABLE))
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        try:
            found = connection.execute(versions).fetchall()
        except psycopg.errors.UndefinedTable:
            return False
    return found == [(newest_revision(migrations), schema)]
