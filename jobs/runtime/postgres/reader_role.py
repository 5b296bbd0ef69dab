"""The read-only role `weir_dashboard`: created and granted at each migration, so that no new table is missed.

It can read what Weir's migrations made, and no other objects of their owner: a database may have other applications.
"""

from __future__ import annotations

from typing import Any

import psycopg
import structlog
from psycopg import sql

from jobs.runtime.postgres.relations import CATALOG, OWN, SECRET
from jobs.runtime.postgres.role_paths import set_path

ROLE = "weir_dashboard"
PASSWORD_VARIABLE = "WEIR_DASHBOARD_PASSWORD"

log = structlog.get_logger()

_TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = %s::regnamespace AND relname = ANY (%s) AND relkind IN ('r', 'p', 'v') ORDER BY 1
"""


def ensure_reader(connection: psycopg.Connection[Any], schema: str, password: str | None) -> None:
    """Let `weir_dashboard` read Weir's tables, those of `schema` and of `catalog`.

    With a password it may also log in; otherwise other roles are made members of it.

    On a managed server the migrating role may not create roles: then its administrator creates `weir_dashboard` once,
    and until then only the owner can read. Raises `psycopg.Error` when a password cannot be set.
    """
    if not role_exists_or_is_made(connection, ROLE):
        log.warning("reader role missing", hint=f"ask the server's administrator for: CREATE ROLE {ROLE}")
        return
    role = sql.Identifier(ROLE)
    for name, own in ((schema, set(OWN) - set(SECRET)), ("catalog", CATALOG)):
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(name), role))
        tables = [table for (table,) in connection.execute(_TABLES, [name, list(own)]).fetchall()]
        shown = sql.SQL(", ").join(sql.Identifier(name, table) for table in tables)
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(shown, role))
    # For other users of this role: the dashboard's own sessions do not need it.
    set_path(connection, ROLE, schema)
    set_reader_password(connection, password)


def set_reader_password(connection: psycopg.Connection[Any], password: str | None) -> None:
    """Let `weir_dashboard`, which is there, log in with it; without one nothing changes."""
    if password:
        # Hashed here, as the server's log may hold every statement.
        secret = connection.pgconn.encrypt_password(password.encode(), ROLE.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(ROLE), sql.Literal(secret)))


def role_exists_or_is_made(connection: psycopg.Connection[Any], role: str) -> bool:
    """Whether there is the role now; it is made without the right to log in."""
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone() is not None:
        return True
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        return True  # another database of the server was migrated at the same moment
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True
