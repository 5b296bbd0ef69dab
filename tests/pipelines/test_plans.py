"""No page, command, gauge or answer of the API gets slower as history grows: its plans read the same rows.

The statements are recorded as they are executed, and explained over a short and a long past with one present.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from api.reader import AccountReader
from bench.history import BIG, Plan, plans, questions
from bench.history_rows import PROGRESS, SESSIONS, UNTIL, fill, sized
from bench.record_rows import fill_records
from cli.reading import read_only
from dashboard.backend import Backend
from dashboard.settings import Settings
from jobs.runtime.postgres.schema import migrate
from metering.api_keys import ApiKey, Scope
from tests.conftest import fresh_database

WINDOWS_A_DAY = {40: 130, 2_000: 6_985}
"""By how many accounts: the same of each account."""
OF_ALL = {
    # What may have changed in any earlier month is a line of the next invoice: a row a month of each key. Of stragglers
    # it reads what "settled since the audit" reads.
    "close: changed since the audit": {"usage_months", "stragglers"},
    # The sum of all invoices: a row each, as long as no month or account is chosen.
    "page Invoices": {"invoices", "invoice_events"},
    # They list or count all that is kept: `analytics.keep_days`, and of thresholds each last version.
    "patterns": {"pattern_matches"},
    "watches": {"watch_hours"},
    "thresholds, the last changes": {"threshold_changes"},
    "thresholds, a page of 2 accounts": {"threshold_changes"},
}
"""What is asked of all time, and the tables that it may read: none of minutes, days or sessions."""
OF_FEW = re.compile(" of (2 accounts|an account)$")

Found = Mapping[str, Sequence[Plan]]


def found(url: str, accounts: int, days: int, *, is_small: bool) -> Found:
    """The plans of each question, of a past of so many days."""
    migrate(url)
    fill(url, windows=WINDOWS_A_DAY[accounts] * days, accounts=accounts, days=days)
    fill_records(url, windows=WINDOWS_A_DAY[accounts] * days, accounts=accounts, days=days)
    with psycopg.connect(url, autocommit=True) as connection:
        if is_small:
            # Reading a small table from end to end is cheaper, and says nothing about a large one.
            connection.execute("SET enable_seqscan = off; SET random_page_cost = 1.1")
            for index in ("usage_windows_by_time", "usage_hours_by_hour", "sessions_by_end"):
                connection.execute(f"ALTER INDEX {index} SET (pages_per_range = 2); REINDEX INDEX {index}".encode())
        return {name: plans(connection, question) for name, question in questions(url).items()}


@pytest.fixture(
    scope="module",
    params=[pytest.param((40, 150, 600), id="small"), pytest.param((2_000, 365, 730), id="5M", marks=pytest.mark.long)],
)
def pasts(request: pytest.FixtureRequest, postgres_url: str) -> tuple[Found, Found]:
    """The plans over a short and a long past."""
    accounts, *pasts = request.param
    both = []
    for days in pasts:
        with fresh_database(postgres_url) as url:
            both.append(found(url, accounts, days, is_small=accounts == 40))
    return both[0], both[1]


def test_no_statement_reads_a_big_table_from_end_to_end(pasts: tuple[Found, Found]) -> None:
    scans = {name: [scan for plan in of for scan in plan.sequential] for name, of in pasts[1].items()}
    assert {name: of for name, of in scans.items() if of} == {}


def test_no_statement_reads_more_rows_over_a_longer_past(pasts: tuple[Found, Found]) -> None:
    short, long = ({name: sum(plan.rows - plan.ragged for plan in of) for name, of in past.items()} for past in pasts)
    assert any(short.values())
    # Of a few accounts the planner may read what it reads of all, whichever is less.
    most = {name: max(rows, short.get(OF_FEW.sub("", name), 0)) for name, rows in short.items()}
    grown = {name: (rows, long[name]) for name, rows in most.items() if long[name] > 1.2 * rows + 50}
    assert grown.keys() <= OF_ALL.keys(), grown
    for name, tables in OF_ALL.items():
        assert {scan.partition(" on ")[2] for plan in pasts[1][name] for scan in plan.scans} == tables


def test_every_question_reads_history_and_every_big_table_is_read(pasts: tuple[Found, Found]) -> None:
    assert [name for name, of in pasts[1].items() if not any(plan.scans for plan in of)] == []
    read = {scan.partition(" on ")[2] for of in pasts[1].values() for plan in of for scan in plan.scans}
    assert read == set(BIG)


def sessions_page(url: str, days: int, *, is_scattered: bool = False) -> int:
    """How many rows the page Sessions reads after so many days, but for what is beside in a range of pages."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sized(SESSIONS, windows=6_985 * days, accounts=2_000, days=days))
        connection.execute(PROGRESS)
        if is_scattered:
            # In each of the ranges somebody is active now.
            connection.execute("UPDATE sessions SET session_end = %s WHERE session_id %% 500 = 0", [UNTIL])
            connection.execute("REINDEX INDEX sessions_by_end")
        connection.execute("VACUUM ANALYZE sessions")
        return sum(plan.rows - plan.ragged for plan in plans(connection, questions(url)["page Sessions"]))


def test_how_full_the_newest_range_of_pages_is_says_nothing_of_growth(database: str, postgres_url: str) -> None:
    with fresh_database(postgres_url) as longer:
        assert sessions_page(database, days=60) == sessions_page(longer, days=90) > 0


def test_a_page_that_reads_many_ranges_is_found(database: str, postgres_url: str) -> None:
    with fresh_database(postgres_url) as longer:
        short = sessions_page(database, days=60, is_scattered=True)
        assert sessions_page(longer, days=90, is_scattered=True) > 1.3 * short


def test_who_reads_plans_for_disks_without_heads(database: str) -> None:
    """By the server's default a month of a large table was found by reading all of it."""

    def cost(at: Any) -> object:
        [row] = at.execute("SHOW random_page_cost").fetchall()
        return row["random_page_cost"]

    with Backend(Settings(postgres_url=database)).snapshot() as dashboard, read_only(database) as command:
        reader = AccountReader(database)
        answered = asyncio.run(reader.run(ApiKey("key", b"", frozenset({Scope.READ})), cost))
        reader.close()
        assert [cost(dashboard), cost(command), answered] == ["1.1"] * 3
