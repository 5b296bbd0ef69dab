"""What the audit reads of the database is what stands there: every name, every digit, however the database is set."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pytest

from jobs.audit.bills.windows import STORED_WINDOWS
from jobs.audit.compare.sessions import SESSIONS
from jobs.audit.recompute.basis import EVERYTHING, Scope
from jobs.audit.tables import database as held
from jobs.audit.tables.database import Stored, stored
from tests.simulation.simulate import quick_database

NAMES = [
    *("null", "NULL", "NA", "N/A", "nan", "NaN", "1.#IND", "", " a ", 'a"b', "a'b", "a,b", "a\nb", "a\r\nb", "a\rb"),
    *("\\N", "\\.", "\ufeffa", "a\tb", "x\u2028y", "ünï 🦊", "true", "t", "12", "1e5", "#", "{1,2}"),
]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANY = 60_000
QUANTITY = Decimal("12345678901234567890123.000001")
INSERT = """
INSERT INTO usage_windows (
    window_start, window_end, account, model, meter, currency, price_version, quantity, unit_price, late_quantity
)
SELECT %(noon)s::timestamptz + number * interval '1 min', %(noon)s::timestamptz + (number + 1) * interval '1 min',
       %(name)s, %(name)s, 'requests', CASE WHEN number % 2 = 0 THEN 'EUR' END, 1, %(quantity)s, 0.000000000001, 0
FROM generate_series(1, %(many)s) AS number
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with quick_database(tmp_path_factory.mktemp("snapshot") / "postgres") as found:
        yield found


@pytest.fixture
def database(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE usage_windows, sessions")
    return url


def insert(url: str, name: str, many: int = 1) -> None:
    said: dict[str, Any] = {"noon": NOON, "name": name, "quantity": QUANTITY, "many": many}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSERT.replace("number %", "number %%").encode(), said)
        connection.execute(
            "INSERT INTO sessions (account, user_id, session_start, session_end, events, version) "
            "VALUES (%(name)s, %(name)s, %(noon)s, %(noon)s, 1, 1)",
            said,
        )


def windows(url: str, asked: Scope = EVERYTHING) -> pl.DataFrame:
    return windows_of(stored(url, asked))


def windows_of(made: Stored) -> pl.DataFrame:
    billed = made.billed
    return pl.concat(billed.rows.rows(held.WINDOWS, n, STORED_WINDOWS) for n in range(billed.buckets))


def test_every_name_is_what_it_is_and_null_is_null(database: str) -> None:
    for name in NAMES:
        insert(database, name, 2)
    made = stored(database)
    found = windows_of(made).sort("window_start")
    for column in ("account", "model"):
        assert sorted(found[column].to_list()) == sorted(NAMES * 2)
    assert found["currency"].to_list() == [None] * len(NAMES) + ["EUR"] * len(NAMES)
    assert set(found["quantity"]) == {QUANTITY}
    assert set(found["unit_price"]) == {Decimal("0.000000000001")}
    sessions = made.sessions.rows.rows(held.LIVE, 0, SESSIONS)
    assert sorted(sessions["user_id"]) == sorted(sessions["account"]) == sorted(NAMES)


def test_a_name_with_line_breaks_is_read_among_many(database: str) -> None:
    insert(database, 'a\n"b\r\n', MANY)
    found = windows(database)
    assert len(found) == MANY
    assert found["model"].unique().to_list() == ['a\n"b\r\n']


@pytest.mark.parametrize("style", ["German", "SQL, DMY"])
def test_a_database_may_write_dates_as_it_likes(database: str, style: str) -> None:
    insert(database, "a")
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.execute("SELECT current_database()").fetchone()
        assert name is not None
        connection.execute(f"ALTER DATABASE {name[0]} SET datestyle = '{style}'".encode())
        try:
            assert windows(database)["window_start"].to_list() == [NOON + timedelta(minutes=1)]
        finally:
            connection.execute(f"ALTER DATABASE {name[0]} RESET datestyle".encode())


def test_with_a_period_only_its_windows_are_read(database: str) -> None:
    insert(database, "a", 100)
    asked = Scope(since=NOON + timedelta(minutes=10), until=NOON + timedelta(minutes=20))
    assert sorted(windows(database, asked)["window_start"]) == [NOON + timedelta(minutes=n) for n in range(10, 20)]


def test_windows_are_in_buckets_and_leave_the_disk_with_the_snapshot(database: str) -> None:
    insert(database, "a", 250_000)
    made = stored(database)
    sizes = [len(made.billed.rows.rows(held.WINDOWS, n, STORED_WINDOWS)) for n in range(made.billed.buckets)]
    assert sum(sizes) == 250_000
    assert max(sizes) < 150_000
    folder = made.billed.rows.folder
    assert folder.exists()
    del made
    assert not folder.exists()
