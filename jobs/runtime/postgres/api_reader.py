"""The role `weir_api_reader`, as which the API reads: it cannot log in, and row-level security applies to it.

The login of the API must be a member of it: the migrating login becomes one here, as the API uses the same login by
default. As for the dashboard's role, an administrator may have to make it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import structlog
from psycopg import sql

from jobs.runtime.postgres.reader_role import role_exists_or_is_made
from jobs.runtime.postgres.relations import ASKED, ASKED_OF_CATALOG, WRITTEN

API_READER = "weir_api_reader"
BECOME = sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(API_READER))
"""From here to its end, a transaction sees what this role sees."""

log = structlog.get_logger()


def ensure_api_reader(connection: psycopg.Connection[Any], schema: str) -> None:
    """Let `weir_api_reader` read what the API answers with, and let this session's login become it."""
    if not role_exists_or_is_made(connection, API_READER):
        log.warning("the API's reader role is missing", hint=f"ask the server's administrator for: {_missing_grant()}")
        return
    role = sql.Identifier(API_READER)
    for name, relations in ((schema, ASKED), ("catalog", ASKED_OF_CATALOG)):
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(name), role))
        shown = sql.SQL(", ").join(sql.Identifier(name, relation) for relation in relations)
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(shown, role))
    written = sql.SQL(", ").join(sql.Identifier(schema, relation) for relation in WRITTEN)
    connection.execute(sql.SQL("GRANT SELECT, INSERT, UPDATE ON {} TO {}").format(written, role))
    if not _may_become(connection) and not _made_member(connection):
        log.warning("this login may not read as the API's reader", hint=f"grant it: {_missing_grant()}")


def _may_become(connection: psycopg.Connection[Any]) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(BECOME)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def _made_member(connection: psycopg.Connection[Any]) -> bool:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(API_READER)))
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def _missing_grant() -> str:
    return f"CREATE ROLE {API_READER}; GRANT {API_READER} TO the login of the API"
