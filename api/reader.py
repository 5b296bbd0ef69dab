"""Reads Postgres for a key: each query runs in one transaction that sees the rows of its accounts only.

Row-level security decides what is seen, not the queries: a query that forgets an account shows nothing of others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import psycopg
import structlog
from psycopg.rows import dict_row

from api.limited_threads import LimitedThreads
from api.problems import Problem, unavailable
from deployment.asking import NO_SCHEMA, first_line
from jobs.queries.reading import PLANNED, Database
from jobs.runtime.postgres.api_reader import BECOME
from jobs.runtime.postgres.session import Session
from metering.api_keys import ApiKey

log = structlog.get_logger()

SESSIONS = 4
"""Queries that run at once; each has a session and a thread."""
MAX_WAITING = 64
"""Queries that wait for a session; further ones are refused."""
STATEMENT_TIMEOUT_SECONDS = 8
ANSWER_TIMEOUT_SECONDS = 20.0
"""Of a whole query, with its wait for a session."""
SILENT_AFTER_SECONDS = 12.0

_OPENING = f"""
SELECT {PLANNED}, set_config('weir.accounts', %(accounts)s, true),
       set_config('statement_timeout', %(timeout)s, true), row_security_active('usage_windows') AS is_guarded
"""
R = TypeVar("R")


class Unguarded(Exception):
    """Row-level security does not apply to what would be read."""


class AccountReader:
    """A few sessions of Postgres, one for each thread, opened when they are needed."""

    def __init__(
        self,
        postgres_url: str,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
        sessions: int = SESSIONS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._postgres_url = postgres_url
        self._threads = LimitedThreads("reader", sessions, max_waiting, answer_timeout_seconds)
        self._own = threading.local()

    async def run(self, key: ApiKey, query: Callable[[Database], R], *, writes: bool = False) -> R:
        """What `query` answers within a transaction that sees one moment, in UTC, and the key's accounts only.

        With `writes` it may write what the role may, and it may be run twice: its session may have been lost.

        Raises Problem: 503 where the database does not answer, or not in time; what `query` raises.
        """
        return await self._threads.run(
            partial(self._run, accounts_setting(key), query, writes),
            too_many="More is asked than can be answered: ask again later.",
            too_late="ask for less",
        )

    def close(self) -> None:
        """Take no further queries; what is running ends by its own time limits."""
        self._threads.close()

    def _run(self, accounts: str, query: Callable[[Database], R], writes: bool) -> R:
        try:
            if (session := self._session()) is not None:
                try:
                    return _within(session, accounts, query, writes)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    if not session.closed:
                        raise
                    # It may have ended long before it was needed.
            return _within(self._connected(), accounts, query, writes)
        except psycopg.errors.QueryCanceled:
            raise unavailable(
                f"The database took longer than {STATEMENT_TIMEOUT_SECONDS} s: ask for less, with from, to and account."
            ) from None
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise Problem(HTTPStatus.BAD_REQUEST, f"This query is not possible: {first_line(error)}.") from None
        except NO_SCHEMA as error:
            log.warning("the database has the schema of another version", reason=first_line(error))
            raise unavailable(
                "The database has the schema of another version of Weir, without what this answer is read from: ask "
                "again when it is migrated. The API's log says what is missing."
            ) from None
        except (psycopg.Error, Unguarded) as error:
            log.warning("the database cannot be read", reason=first_line(error))
            raise unavailable("The database does not answer: ask again later. The API's log says why.") from None

    def _session(self) -> Session | None:
        session: Session | None = getattr(self._own, "session", None)
        return None if session is None or session.closed else session

    def _connected(self) -> Session:
        session = Session.to(
            self._postgres_url, "weir-api reader", silent_after_seconds=SILENT_AFTER_SECONDS, row_factory=dict_row
        )
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._own.session = session
        return session


def accounts_setting(key: ApiKey) -> str:
    """What `weir.accounts` is set to for a key: `*` where it names no account, else a JSON array."""
    return json.dumps(sorted(key.accounts)) if key.accounts else "*"


def _within(session: Session, accounts: str, query: Callable[[Database], R], writes: bool) -> R:
    session.read_only = not writes
    with session.transaction():
        try:
            session.execute(BECOME)
        except psycopg.errors.InvalidParameterValue as error:
            # There is no such role, which is no mistake of whoever asks.
            raise Unguarded(first_line(error)) from None
        limits = {"accounts": accounts, "timeout": f"{STATEMENT_TIMEOUT_SECONDS}s"}
        opened = session.execute(_OPENING, limits).fetchone()
        if not (opened and opened["is_guarded"]):
            raise Unguarded("row-level security does not apply to the role weir_api_reader")
        return query(session)
