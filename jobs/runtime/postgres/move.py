"""The move of Weir's tables from `public` into their own schema: short, and only while no session uses them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
import structlog
from psycopg import sql

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.reader_role import ROLE

EARLIER_HOME = "public"
"""Where releases up to 0034 made them."""
LOCK_TIMEOUT = "2s"
"""Statements on the tables wait behind the move, so it gives up soon and tries again."""
LOCK_PAUSE_SECONDS = 0.5
LOCK_DEADLINE_SECONDS = 120.0

log = structlog.get_logger()

Connection = psycopg.Connection[Any]

_KINDS = "SELECT relname, relkind = 'S' FROM pg_class WHERE relnamespace = %s::regnamespace AND relname = ANY (%s)"
_SHOWN_TO_READER = """
SELECT relname FROM pg_class CROSS JOIN aclexplode(relacl) AS entry
WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') AND pg_has_role(relowner, 'USAGE')
  AND grantee = (SELECT oid FROM pg_roles WHERE rolname = %s)
"""


def move(
    connection: Connection,
    schema: str,
    moved: Sequence[str],
    *,
    lock_timeout: str = LOCK_TIMEOUT,
    deadline_seconds: float = LOCK_DEADLINE_SECONDS,
) -> None:
    """Move these relations and functions, in the transaction of a migration.

    Raises Refused where a table does not become free.
    """
    target = sql.Identifier(schema)
    kinds = connection.execute(_KINDS, [EARLIER_HOME, list(moved)]).fetchall()
    tables = [name for name, is_sequence in kinds if not is_sequence]
    lock_alone(connection, EARLIER_HOME, tables, lock_timeout, deadline_seconds)
    for name, is_sequence in kinds:
        # ALTER TABLE moves views, and what a table owns: indexes, constraints, the sequence of an identity.
        kind = sql.SQL("SEQUENCE" if is_sequence else "TABLE")
        connection.execute(
            sql.SQL("ALTER {} {} SET SCHEMA {}").format(kind, sql.Identifier(EARLIER_HOME, name), target)
        )
    for function in (name for name in moved if name.endswith(")")):
        connection.execute(
            sql.SQL("ALTER FUNCTION {}.{} SET SCHEMA {}").format(
                sql.Identifier(EARLIER_HOME), sql.SQL(function), target
            )
        )
    _take_back(connection)
    log.info("moved Weir's tables into a schema of their own", schema=schema, tables=len(kinds))


def lock_alone(
    connection: Connection,
    schema: str,
    tables: Sequence[str],
    timeout: str,
    deadline_seconds: float = LOCK_DEADLINE_SECONDS,
) -> None:
    """Lock all of them for this transaction, without making others queue behind it for long.

    With a `timeout` below the server's deadlock_timeout no other session is ended. Raises Refused where a table does
    not become free.
    """
    names = sql.SQL(", ").join(sql.Identifier(schema, name) for name in sorted(tables))
    deadline = time.monotonic() + deadline_seconds
    while True:
        try:
            with connection.transaction():
                connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(timeout)))
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names))
                connection.execute("SET LOCAL lock_timeout TO DEFAULT")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if time.monotonic() > deadline:
                raise Refused(
                    f"for {deadline_seconds:g} s another session had a table of Weir's in use (pg_stat_activity shows "
                    "who): end that, or migrate later. Nothing was changed"
                ) from None
            log.info("waits for Weir's tables to be free")
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            return


def _take_back(connection: Connection) -> None:
    """Earlier releases let the reader read every table of `public`, also those of others."""
    role, home = sql.Identifier(ROLE), sql.Identifier(EARLIER_HOME)
    shown = connection.execute(_SHOWN_TO_READER, [EARLIER_HOME, ROLE]).fetchall()
    for (name,) in shown:
        table = sql.Identifier(EARLIER_HOME, name)
        connection.execute(sql.SQL("REVOKE SELECT ON {} FROM {}").format(table, role))
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone() is not None:
        connection.execute(sql.SQL("REVOKE USAGE ON SCHEMA {} FROM {}").format(home, role))
