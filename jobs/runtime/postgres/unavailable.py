"""Which errors of Postgres mean that it is unavailable. An SQLSTATE decides; libpq's own errors have only text.

Unknown text may be in another language: then the server is asked again, for its code.

A server that has answered, and will give the same answer until a person acts, is not unavailable: no such role or
database, no entry in pg_hba.conf, an untrusted certificate, a statement limit.
"""

from __future__ import annotations

import re

import psycopg

from jobs.runtime.postgres.ping import starts_or_stops

UNAVAILABLE_CLASSES = ("08", "53", "58")
"""The connection, resources (sessions, memory, disk) and the server's own system. Not 54: a statement is too large."""
UNAVAILABLE_CODES = frozenset(
    {
        *("57P01", "57P02", "57P03", "57P05"),  # it shuts down, crashed, starts; a session was idle for too long
        "57014",  # a statement was cancelled
        *("40001", "40P01", "55P03"),  # another transaction was in the way
        *("25006", "25P03", "25P04"),  # a standby that is to be promoted; a transaction that was ended for its age
    }
)
ANSWERED = re.compile(r"\b(FATAL|PANIC):")
"""A session's first error is the server's or a pooler's, but libpq hands on its words only."""
ANSWERED_UNAVAILABLE = re.compile(
    r"starting up|shutting down|recovery|(not|longer) (yet |currently )?accepting connections|terminating connection"
    r"|too many|connection slots|no more connections|out of memory|no space left|cannot connect|connect failed"
    r"|login has been failing|conn crashed|pooler|timed?[- ]?out|unavailable|try again",
    re.IGNORECASE,
)
LOST = re.compile(r"(consuming input|sending query|flushing|the connection is )")
"""How psycopg's errors of an established session begin: such an error is not a refused login."""
WRONG_HERE = re.compile(
    r"certificate|unknown ca\b|private key|does not support SSL|no password supplied"
    r"|invalid (sslmode|connection option|port|integer value)|authentication (method|failed|requirement)"
    r"|no attempt (was|is) made|SSL (connection )?required|no encryption",
    re.IGNORECASE,
)
"""Errors that libpq itself finds in the address, without or after an answer."""
WRONG_HERE_OR_THERE = (
    "see that the role, the database and pg_hba.conf are there for WEIR_POSTGRES_URL, that its password and "
    "certificates are right, and that no limit of the server is in the way"
)
REMEDY = f"Postgres answered, so this is not waited for: {WRONG_HERE_OR_THERE}"


def database_is_unavailable(error: psycopg.Error) -> bool:
    """Whether waiting mends it."""
    if error.sqlstate is not None:
        return error.sqlstate in UNAVAILABLE_CODES or error.sqlstate.startswith(UNAVAILABLE_CLASSES)
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    text = str(error)
    if LOST.match(text) or not any(_is_final(line) for line in text.splitlines()):
        return True
    return starts_or_stops(error)


def _is_final(line: str) -> bool:
    """Of several addresses each has a line: one that answered knows."""
    if ANSWERED.search(line):
        return ANSWERED_UNAVAILABLE.search(line) is None
    return WRONG_HERE.search(line) is not None


def remedy(error: BaseException) -> str | None:
    """What to do when Postgres is there, but not for us; None for other errors."""
    cause = getattr(error, "orig", error)  # SQLAlchemy's errors hold the driver's
    if not isinstance(cause, psycopg.OperationalError | psycopg.errors.InvalidCatalogName):
        return None
    return None if database_is_unavailable(cause) else REMEDY
