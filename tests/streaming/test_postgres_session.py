"""Nobody waits for ever for a database that is frozen, and nobody gives up one that is only slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import polars as pl
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import schema_is_current
from jobs.runtime.postgres.session import ServerIsSilent, Session
from jobs.runtime.postgres.unavailable import remedy
from jobs.runtime.transient_errors import transient_error_of
from metering.vocabulary import Cause


@contextmanager
def frozen(session: Session) -> Iterator[None]:
    """The server's side of the session stands still; its kernel goes on to answer."""
    pid = session.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_is_frozen_inside_a_transaction_is_noticed_once(database: str) -> None:
    session = Session.to(database, "frozen", silent_after_seconds=0.3)
    with pytest.raises(ServerIsSilent) as found, session.transaction():  # noqa: PT012  # it freezes inside
        session.execute("SELECT 1")
        with frozen(session):
            session.execute("SELECT 2")
    obstacle = transient_error_of(found.value)
    assert obstacle is not None
    assert obstacle.cause is Cause.DATABASE
    assert session.closed


def test_a_copy_into_a_frozen_server_is_noticed(database: str) -> None:
    session = Session.to(database, "frozen", silent_after_seconds=0.3)
    session.execute("CREATE TEMP TABLE filled (line text)")
    with (  # noqa: PT012  # it freezes inside
        pytest.raises(ServerIsSilent),
        session.cursor() as cursor,
        cursor.copy("COPY filled FROM STDIN") as copy,
        frozen(session),
    ):
        for _ in range(1_000):
            copy.write(b"x" * 65_535 + b"\n")


def test_a_statement_that_is_slow_on_a_living_server_is_waited_for(database: str) -> None:
    session = Session.to(database, "slow", silent_after_seconds=0.2, is_patient=True)
    assert session.execute("SELECT pg_sleep(1)").rowcount == 1
    session.close()


def test_a_slow_statement_is_waited_for_also_when_no_other_session_is_free(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS limited")
        owner.execute("CREATE ROLE limited LOGIN PASSWORD 'word' CONNECTION LIMIT 1")
    there = urlsplit(database)
    limited = there._replace(netloc=f"limited:word@{there.hostname}:{there.port}").geturl()
    session = Session.to(limited, "slow", silent_after_seconds=0.2, is_patient=True)
    with pytest.raises(psycopg.OperationalError, match="too many connections"):
        psycopg.connect(limited)
    assert session.execute("SELECT pg_sleep(1)").rowcount == 1
    session.close()


def test_an_error_of_the_server_is_shown_unchanged(database: str) -> None:
    session = Session.to(database, "wrong")
    assert session.execute("SELECT pg_backend_pid()").fetchone() == (session.info.backend_pid,), "no pooler is seen"
    with pytest.raises(psycopg.errors.UndefinedTable):
        session.execute("SELECT * FROM nowhere")
    assert session.execute("SELECT 1").fetchone() == (1,)
    session.close()


@pytest.mark.parametrize("missing", ["role", "database"])
def test_a_server_that_answers_is_not_waited_for(database: str, missing: str) -> None:
    there = urlsplit(database)
    url = (
        there._replace(netloc=f"nobody:word@{there.hostname}:{there.port}")
        if missing == "role"
        else there._replace(path="/nowhere")
    ).geturl()
    for connect in (schema_is_current, lambda url: Ownership.take("joins", url, {})):
        with pytest.raises(
            (psycopg.OperationalError, OperationalError), match=r"not exist|authentication failed"
        ) as found:
            connect(url)
        assert transient_error_of(found.value) is None
        assert remedy(found.value) is not None


def test_a_server_that_is_not_there_is_waited_for() -> None:
    for address in ("127.0.0.1:1", "nowhere.invalid:5432"):
        for connect in (schema_is_current, lambda url: Ownership.take("joins", url, {})):
            with pytest.raises((psycopg.OperationalError, OperationalError)) as found:
                connect(f"postgresql://weir@{address}/weir")
            obstacle = transient_error_of(found.value)
            assert obstacle is not None, str(found.value)
            assert obstacle.cause is Cause.DATABASE


def test_a_limit_of_a_statement_is_not_waited_for(database: str) -> None:
    ownership = Ownership.take("joins", database, {})
    try:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded), ownership.transaction() as cursor:
            cursor.execute("SELECT array_fill(1, ARRAY[1000000, 1000000])")
    finally:
        ownership.close()


@pytest.mark.parametrize("zone", ["Etc/UTC", "GMT", "Europe/Berlin"])
def test_instants_are_read_in_utc_in_every_zone_of_the_database(database: str, zone: str) -> None:
    """Polars takes those of another zone for another type: ingestion ended at its first batch."""
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET timezone = '{zone}'".encode())
    with Session.to(database, "test") as session:
        found = session.execute("SELECT current_setting('TimeZone'), now()").fetchone()
    assert found is not None
    assert found[0] == "UTC"
    assert pl.Series([found[1]]).dtype == pl.Datetime("us", "UTC")
