"""Weir's own schema: created for a new installation, and filled with the tables that earlier releases made in `public`.

A move changes the system catalog only, so it is short, but it needs an exclusive lock on each table. Sessions of the
previous release's drivers continue: they name tables without a schema, so their roles get a `search_path` in which
`weir` comes before `public`, and sessions that began before that are ended first. A driver resumes a lost session where
it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.address import SCHEMA_VARIABLE
from jobs.runtime.postgres.move import EARLIER_HOME, move
from jobs.runtime.postgres.relations import EARLIER, OWN, VERSION_TABLE, functions_made_by, made_by
from jobs.runtime.postgres.role_paths import grantees, roles_that_read, set_path

SESSION_ENDS_WITHIN_MS = 5_000

Connection = psycopg.Connection[Any]

_HOMES = """
SELECT nspname FROM pg_namespace WHERE NOT EXISTS (
    SELECT FROM unnest(%s::text[]) AS name
    WHERE NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = pg_namespace.oid AND relname = name)
) ORDER BY 1
"""
_NAMES = "SELECT relname FROM pg_class JOIN pg_namespace ON relnamespace = pg_namespace.oid WHERE nspname = %s"
# Columns of Weir's own tables, which no other application's of the same names have together.
_COLUMNS = {"jobs": ("epoch", "owner_pid"), "positions": ("next_position",), VERSION_TABLE: ("version_num",)}
_HAS_COLUMNS = """
SELECT count(*) = cardinality(%(names)s::text[]) FROM pg_attribute
WHERE attrelid = %(table)s::regclass AND attname = ANY (%(names)s)
"""
_OWNERS_OF_OTHERS = """
SELECT DISTINCT relowner::regrole::text FROM pg_class
WHERE relnamespace = %s::regnamespace AND relname = ANY (%s) AND NOT pg_has_role(relowner, 'USAGE')
"""
_OWNER = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = %s::regnamespace AND relname = 'jobs'"
_MAY_USE = """
SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s
"""
# Only Weir's own programs are named so; a role may have others.
_END_SESSIONS = """
SELECT count(pg_terminate_backend(pid, %(limit_ms)s)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = ANY (%(roles)s) AND application_name LIKE 'weir %%'
  AND backend_type = 'client backend' AND backend_start < clock_timestamp() AND pid <> pg_backend_pid()
"""


def prepare_move(connection: Connection, schema: str) -> None:
    """Let sessions find the tables in either place, before any is moved. `connection` is in autocommit.

    It changes nothing where there is nothing to move, and is safe to be done again.
    """
    if _exists(connection, schema, VERSION_TABLE) or (moved := _earlier(connection)) is None:
        return
    _refuse_taken(connection, schema)
    _refuse_owner(connection, moved)
    _make(connection, schema, _owner(connection))
    for role in grantees(connection, EARLIER_HOME, moved):
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), sql.SQL(role)))
    roles = roles_that_read(connection, EARLIER_HOME, moved)
    given = [role for role in roles if set_path(connection, role, schema)]
    connection.execute(_END_SESSIONS, {"roles": given, "limit_ms": SESSION_ENDS_WITHIN_MS})


def place(connection: Connection, schema: str) -> None:
    """See that Weir's tables are in `schema`, or will be made there; part of the migration's transaction.

    Raises Refused where they are in another schema than that or `public`, where the names are taken, and where a
    table does not become free.
    """
    if _exists(connection, schema, VERSION_TABLE):
        return
    moved = _earlier(connection)
    if moved is None:
        _refuse_elsewhere(connection, schema)
    _refuse_taken(connection, schema)
    _make(connection, schema, None if moved is None else _owner(connection))
    if moved is not None:
        _refuse_owner(connection, moved)
        move(connection, schema, moved)


def _exists(connection: Connection, schema: str, table: str) -> bool:
    return table in _names(connection, schema)


def _names(connection: Connection, schema: str) -> set[str]:
    return {name for (name,) in connection.execute(_NAMES, [schema]).fetchall()}


def _earlier(connection: Connection) -> tuple[str, ...] | None:
    """What an earlier release made in `public`; None where it made nothing, regardless of others' tables there.

    Another application may have tables of the same names, and Alembic's own, too.
    """
    names = _names(connection, EARLIER_HOME)
    if not names.issuperset(EARLIER["0001"]) or not all(_has_columns(connection, table) for table in _COLUMNS):
        return None
    version = sql.Identifier(EARLIER_HOME, VERSION_TABLE)
    try:
        with connection.transaction():
            row = connection.execute(sql.SQL("SELECT version_num FROM {}").format(version)).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    if row is None or not (made := made_by(row[0])):
        return None
    return (*made, *functions_made_by(row[0])) if names.issuperset(made) else None


def _has_columns(connection: Connection, table: str) -> bool:
    parameters = {"table": f"{EARLIER_HOME}.{table}", "names": list(_COLUMNS[table])}
    return connection.execute(_HAS_COLUMNS, parameters).fetchone() == (True,)


def _refuse_elsewhere(connection: Connection, schema: str) -> None:
    homes = [home for (home,) in connection.execute(_HOMES, [list(EARLIER["0001"])]).fetchall() if home != EARLIER_HOME]
    if homes:
        raise Refused(
            f"this database has Weir's tables in the schema {homes[0]}, and not in {schema}: set {SCHEMA_VARIABLE} to "
            f"{homes[0]}. Two installations need a database each: they would share the schema catalog"
        )
    if connection.execute("SELECT to_regnamespace('catalog') IS NOT NULL").fetchone() == (True,):
        raise Refused(
            "this database has a schema catalog that Weir did not make, and Weir needs one of this name: give Weir a "
            "database of its own"
        )


def _refuse_taken(connection: Connection, schema: str) -> None:
    if taken := sorted(_names(connection, schema).intersection(OWN)):
        raise Refused(
            f"the schema {schema} has tables that Weir did not make, of names that it needs ({', '.join(taken)}): "
            f"name another schema with {SCHEMA_VARIABLE}"
        )


def _refuse_owner(connection: Connection, moved: Sequence[str]) -> None:
    others = connection.execute(_OWNERS_OF_OTHERS, [EARLIER_HOME, list(moved)]).fetchall()
    if others:
        raise Refused(
            f"Weir's tables in the schema {EARLIER_HOME} belong to {', '.join(name for (name,) in others)}, and only "
            "their owner may move them: WEIR_POSTGRES_URL must name that role"
        )


def _owner(connection: Connection) -> str:
    """The owner of the moved tables: the migrating role may be another one, with the owner's rights."""
    return str(connection.execute(_OWNER, [EARLIER_HOME]).fetchall()[0][0])


def _make(connection: Connection, schema: str, owner: str | None) -> None:
    """For `owner`, or the migrating role. A role that may not create schemas uses one that was created for it."""
    found = connection.execute(_MAY_USE, [schema]).fetchone()
    if found == (False,):
        raise Refused(
            f"{connection.info.user} may make no tables in the schema {schema}, which is there already; ask the "
            f"server's administrator for: ALTER SCHEMA {schema} OWNER TO {owner or connection.info.user}"
        )
    if found == (True,):
        return
    try:
        with connection.transaction():
            whose = sql.SQL("CURRENT_USER") if owner is None else sql.Identifier(owner)
            connection.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(sql.Identifier(schema), whose))
    except psycopg.errors.InsufficientPrivilege:
        role = owner or connection.info.user
        raise Refused(
            f"{connection.info.user} may not make the schema {schema}; ask the server's administrator for: "
            f"CREATE SCHEMA {schema} AUTHORIZATION {role}"
        ) from None
