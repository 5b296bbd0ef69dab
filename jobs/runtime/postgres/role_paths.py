"""The `search_path` of roles that name tables without a schema: the previous release's drivers, and people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg
import structlog
from psycopg import sql

DEFAULT_PATH = '"$user", public'
"""Postgres' own default, of a role without a setting."""

log = structlog.get_logger()

_GRANTEES = """
SELECT DISTINCT grantee::regrole::text FROM pg_class CROSS JOIN aclexplode(relacl) AS entry
WHERE relnamespace = %s::regnamespace AND relname = ANY (%s) AND grantee NOT IN (0, relowner) ORDER BY 1
"""
# Owners and grantees of a table, members of the reader, and the logins of running drivers. Members of the owner may
# be other applications.
_ROLES = """
WITH tables AS (
    SELECT relowner, relacl FROM pg_class WHERE relnamespace = %(schema)s::regnamespace AND relname = ANY (%(tables)s)
), readers AS (
    SELECT DISTINCT grantee AS oid FROM tables CROSS JOIN aclexplode(relacl) AS entry WHERE grantee <> 0
), named AS (
    SELECT oid FROM readers
    UNION SELECT relowner FROM tables
    UNION SELECT oid FROM pg_roles WHERE rolname IN (current_user, session_user)
    UNION SELECT usesysid FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'weir %%'
    UNION SELECT member.oid FROM pg_roles AS member JOIN readers ON pg_has_role(member.oid, readers.oid, 'MEMBER')
        JOIN pg_roles AS reader ON reader.oid = readers.oid
        WHERE NOT member.rolsuper AND reader.oid NOT IN (SELECT relowner FROM tables)
)
SELECT rolname FROM pg_roles JOIN named USING (oid) WHERE NOT starts_with(rolname, 'pg_') ORDER BY 1
"""
# What is set for a role in this database, for the role, and for the database, in the order in which they count.
_PATHS = """
SELECT setdatabase <> 0 AND setrole <> 0 AS is_exact, substring(setting FROM '^search_path=(.*)$')
FROM pg_db_role_setting CROSS JOIN unnest(setconfig) AS setting
WHERE setting LIKE 'search_path=%%'
  AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = %s))
ORDER BY setrole <> 0 AND setdatabase <> 0 DESC, setrole <> 0 DESC
"""
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^",\s]+)')


def grantees(connection: psycopg.Connection[Any], schema: str, tables: Sequence[str]) -> list[str]:
    """Roles that were granted something of these tables of `schema`, as SQL writes their names; never all roles."""
    return [name for (name,) in connection.execute(_GRANTEES, [schema, list(tables)]).fetchall()]


def roles_that_read(connection: psycopg.Connection[Any], schema: str, tables: Sequence[str]) -> list[str]:
    """Roles whose sessions may name these tables of `schema`."""
    parameters = {"schema": schema, "tables": list(tables)}
    return [name for (name,) in connection.execute(_ROLES, parameters).fetchall()]


def set_path(connection: psycopg.Connection[Any], role: str, schema: str) -> bool:
    """Let new sessions of `role` in this database search `schema` just before `public`, or last without `public`.

    So names keep their meaning: objects that the role finds before `public`, in a schema of its own, still come first.

    False, with a warning, where the role of `connection` may not change the settings of `role`.
    """
    found = connection.execute(_PATHS, [role]).fetchall()
    path = _parts(found[0][1] if found else DEFAULT_PATH)
    if schema in path:
        if found[0][0]:
            return True
    else:
        path.insert(path.index("public") if "public" in path else len(path), schema)
    # Each name is quoted: a role may have anything in its own path, SQL too, which would run with the rights of Weir.
    statement = sql.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = {}").format(
        sql.Identifier(role), sql.Identifier(connection.info.dbname), sql.SQL(", ").join(map(sql.Identifier, path))
    )
    try:
        with connection.transaction():
            connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        log.warning(
            "the search_path of a role could not be set",
            role=role,
            hint=f"ask the server's administrator for: {statement.as_string(connection)}",
        )
        return False
    return True


def _parts(path: str) -> list[str]:
    """The names of a search_path, as Postgres reads it: what is not quoted is in small letters."""
    return [
        quoted.replace('""', '"') if quoted else plain.lower()
        for quoted, plain in _NAME.findall(path)
        if quoted or plain
    ]
