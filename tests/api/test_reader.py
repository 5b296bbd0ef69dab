"""Questions of strangers are bounded: in time, and in how many are asked at once; and nothing is written by them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from starlette.requests import Request

from api.problems import Problem
from api.read_request import ReadRequest
from api.reader import MAX_WAITING, SESSIONS, STATEMENT_TIMEOUT_SECONDS, AccountReader
from api.tables import StoredTables
from jobs.billing_progress import Progress, billing_progress
from jobs.queries.reading import Database
from jobs.runtime.postgres.downgrade import downgrade
from metering.api_keys import ApiKey
from tests.database_rows import progress

T0 = datetime(2026, 11, 1, 10, tzinfo=UTC)
KEY = ApiKey("1", b"", frozenset())


def asked(statement: str) -> Callable[[Database], Any]:
    return lambda database: database.execute(statement).fetchall()


async def answers(database: str, *statements: str) -> list[Any]:
    """What each is answered with, all at once: rows, or the problem."""
    reader = AccountReader(database)
    try:
        return await asyncio.gather(*(reader.run(KEY, asked(each)) for each in statements), return_exceptions=True)
    finally:
        reader.close()


def test_a_slow_query_times_out_with_an_error(database: str) -> None:
    answer, limit = asyncio.run(answers(database, "SELECT pg_sleep(60)", "SHOW statement_timeout"))
    assert isinstance(answer, Problem)
    assert (answer.status, "ask for less" in answer.detail) == (503, True)
    assert limit[0]["statement_timeout"] == f"{STATEMENT_TIMEOUT_SECONDS}s"


def test_an_older_schema_is_named_as_that_and_not_as_a_database_that_does_not_answer(database: str) -> None:
    downgrade(database, "0094")
    missing, there = asyncio.run(answers(database, "SELECT * FROM declared_windows", "SELECT 1 AS one"))
    assert isinstance(missing, Problem)
    assert (missing.status, missing.detail.partition(" of Weir")[0]) == (
        503,
        "The database has the schema of another version",
    )
    assert there[0]["one"] == 1


def test_queries_beyond_the_queue_are_refused(database: str) -> None:
    room = SESSIONS + MAX_WAITING
    found = asyncio.run(answers(database, *["SELECT 1 AS one, pg_sleep(0.1)"] * (room + 5)))
    refused = [answer for answer in found if isinstance(answer, Problem)]
    assert [answer.status for answer in refused] == [503] * 5
    assert [answer[0]["one"] for answer in found if answer not in refused] == [1] * room


def test_an_abandoned_query_is_not_run(database: str) -> None:
    begun: list[int] = []
    is_over = threading.Event()

    def slow(number: int) -> Callable[[Database], Any]:
        def question(_: Database) -> None:
            begun.append(number)
            assert is_over.wait(60)

        return question

    async def given_up() -> list[Any]:
        reader = AccountReader(database, answer_timeout_seconds=5)
        try:
            waiting = [reader.run(KEY, slow(number)) for number in range(3 * SESSIONS)]
            found = await asyncio.gather(*waiting, return_exceptions=True)
            is_over.set()
            # Whoever asks now comes after those that were given up.
            assert await reader.run(KEY, asked("SELECT 1 AS one")) == [{"one": 1}]
            return found
        finally:
            is_over.set()
            reader.close()

    found = asyncio.run(given_up())
    assert [answer.status for answer in found] == [503] * (3 * SESSIONS)
    assert len(begun) == SESSIONS


def test_never_do_more_reads_run_than_there_are_sessions_also_when_their_clients_were_answered(database: str) -> None:
    running: list[int] = []
    most: list[int] = []

    def slow(connection: Database) -> None:
        running.append(1)
        most.append(len(running))
        connection.execute("SELECT pg_sleep(1)")
        running.pop()

    async def one_after_another() -> list[Any]:
        reader = AccountReader(database, answer_timeout_seconds=0.4, sessions=1, max_waiting=1)
        try:
            return [(await asyncio.gather(reader.run(KEY, slow), return_exceptions=True))[0] for _ in range(4)]
        finally:
            reader.close()

    found = asyncio.run(one_after_another())
    assert [answer.status for answer in found] == [503] * 4
    assert max(most) == 1


def test_tables_that_do_not_answer_are_not_waited_for(tmp_path: Path) -> None:
    ended, answered = threading.Event(), threading.Event()
    was_answered: list[bool] = []

    def answer(_: object) -> None:
        ended.wait(60)
        answered.set()

    async def read() -> None:
        tables = StoredTables(str(tmp_path), "localhost:1", read_timeout_seconds=0.3)
        try:
            await tables.read(answer)
        finally:
            was_answered.append(answered.is_set())
            ended.set()
            tables.close()

    with pytest.raises(Problem) as caught:
        asyncio.run(read())
    assert caught.value.status == 503
    assert was_answered == [False]


def test_an_answer_and_its_frontier_are_of_one_snapshot(database: str) -> None:
    progress(database, "billing", T0)

    def read(connection: Database, before: Progress) -> tuple[Any, Any]:
        with psycopg.connect(database) as other:
            other.execute("UPDATE positions SET frontier = %s", [T0 + timedelta(hours=1)])
        return before, billing_progress(connection)

    async def answer() -> Any:
        reader = AccountReader(database)
        try:
            return await ReadRequest(Request({"type": "http"}), KEY, reader).with_progress(read)
        finally:
            reader.close()

    (before, after), frontier = asyncio.run(answer())
    assert frontier == T0
    assert before == after


@pytest.mark.parametrize("statement", ["DELETE FROM usage_windows", "RESET ROLE; DELETE FROM usage_windows"])
def test_a_query_cannot_write(database: str, statement: str) -> None:
    (answer,) = asyncio.run(answers(database, statement))
    assert isinstance(answer, Problem)
    assert answer.status == 503


def test_a_missing_role_is_a_server_error(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("ALTER ROLE weir_api_reader RENAME TO weir_api_reader_before")
        try:
            (answer,) = asyncio.run(answers(database, "SELECT 1"))
        finally:
            owner.execute("ALTER ROLE weir_api_reader_before RENAME TO weir_api_reader")
    assert isinstance(answer, Problem)
    assert answer.status == 503


def test_without_the_role_nothing_is_read(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE ROLE bare LOGIN PASSWORD 'x'")
        owner.execute("GRANT USAGE ON SCHEMA weir TO bare; GRANT SELECT ON weir.usage_windows TO bare")
        try:
            url = psycopg.conninfo.make_conninfo(database, user="bare", password="x")
            (answer,) = asyncio.run(answers(url, "SELECT account FROM usage_windows"))
            assert isinstance(answer, Problem)
            assert answer.status == 503
        finally:
            owner.execute("DROP OWNED BY bare; DROP ROLE bare")
