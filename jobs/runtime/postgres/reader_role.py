"""The role that only reads, `weir_dashboard`: made and granted at each migration, so that no new table is missed."""

from __future__ import annotations

import psycopg
import structlog
from psycopg import sql

ROLE = "weir_dashboard"
PASSWORD_VARIABLE = "WEIR_DASHBOARD_PASSWORD"
SCHEMAS = ("public", "catalog")

log = structlog.get_logger()


def ensure_reader(connection: psycopg.Connection, password: str | None) -> None:
    """Let `weir_dashboard` read; with a password it may also log in, else other roles are made members of it.

    On a managed server the migrating role may not make roles: then its administrator makes `weir_dashboard` once, and
    until that was done nobody but the owner reads. Raises `psycopg.Error` when a password cannot be set.
    """
    if not _exists(connection) and not _made(connection):
        log.warning("reader role missing", hint=f"ask the server's administrator for: CREATE ROLE {ROLE}")
        return
    role = sql.Identifier(ROLE)
    for name in SCHEMAS:
        schema = sql.Identifier(name)
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(schema, role))
    if password:
        # Hashed here, as the server's log may hold every statement.
        secret = connection.pgconn.encrypt_password(password.encode(), ROLE.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(secret)))


def _exists(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone() is not None


def _made(connection: psycopg.Connection) -> bool:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(ROLE)))
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        return True  # another database of the server was migrated at the same moment
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True
