"""The live page as Streamlit draws it, on a real database: empty, idle, stale, filling, and with the backend down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard import panel
from tests.database_rows import MINUTE, progress, window, write

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
JOBS = ("ingestion", "sessionization", "joins", "billing")


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture
def page(database: str, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setenv(panel.URL_VARIABLE, database)
    monkeypatch.setattr(panel, "SHARED_FOR_SECONDS", 0.0)
    return AppTest.from_file(str(APP), default_timeout=30)


def texts(page: AppTest) -> str:
    assert not page.exception
    kinds = (page.markdown, page.caption, page.info, page.warning, page.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def this_minute() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


def report(**values: object) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    said = {"records_behind": 1234, "seconds_behind": 5.25, "last_batch_at": now, "frontier": now}
    return {**said, "last_batch_records": 9876, "last_batch_ms": 321, **values}


def all_report(database: str, **values: object) -> None:
    for job in JOBS:
        progress(database, job, datetime.now(UTC), report=report(**values))


def test_an_empty_database_says_that_nothing_ran_yet(page: AppTest) -> None:
    shown = texts(page.run())
    assert shown.count("never ran") == 4
    assert "No usage yet" in shown
    assert not page.error
    assert not page.dataframe


def test_running_applications_show_lag_last_batch_and_restarts(page: AppTest, database: str) -> None:
    all_report(database)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET epoch = 4 WHERE job = 'joins'")
    shown = texts(page.run())
    assert all(f"**{job}**" in shown for job in JOBS)
    assert shown.count("running]") == 4
    assert [metric.value for metric in page.metric] == ["1,234", "5.2"] * 4
    assert "Last batch: 9,876 records in 321 ms, 0 s ago" in shown
    assert shown.count("Restarts: 0") == 3
    assert "Restarts: 3" in shown
    assert "Frontier: 20" in shown


def test_an_unknown_lag_is_not_shown_as_none(page: AppTest, database: str) -> None:
    progress(database, "joins", None, state="starting")
    shown = texts(page.run())
    assert "starting]" in shown
    assert [metric.value for metric in page.metric] == ["unknown", "unknown"]
    assert "none since it started" in shown


def test_a_silent_application_is_stale_and_keeps_its_last_values(page: AppTest, database: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=10)
    progress(database, "billing", this_minute(), updated_at=long_ago, report=report())
    write(database, "usage_windows", window(this_minute()))
    shown = texts(page.run())
    assert "stale]" in shown
    assert "No report for 10 min" in shown
    assert "Stale: billing has not reported for 10 min" in shown
    assert len(page.dataframe[0].value) == 1


def test_closed_windows_only_are_idle(page: AppTest, database: str) -> None:
    all_report(database, records_behind=0, last_batch_at="2026-01-01T00:00:00Z")
    write(database, "usage_windows", window(this_minute() - timedelta(hours=2)))
    shown = texts(page.run())
    assert shown.count("idle]") == 4
    assert "Idle: every window is closed" in shown
    assert not page.dataframe


def test_windows_fill_while_one_watches(page: AppTest, database: str) -> None:
    minute = this_minute()
    progress(database, "billing", minute + timedelta(seconds=30), report=report())
    amount = Decimal("12345678901234567890.000000000001")
    write(
        database,
        "usage_windows",
        window(minute, 3, amount=amount),
        window(minute, 40, meter="input_tokens", amount=None, price_version=None),
        window(minute - MINUTE, 2, account="a2", currency="USD"),
        window(minute - 6 * MINUTE, 9),
    )
    page.run()
    assert page.dataframe[0].value.to_dict("records") == [
        {
            "window start (UTC)": f"{minute:%Y-%m-%d %H:%M}",
            "state": "open",
            "account": "a1",
            "requests": 3,
            "input tokens": 40,
            "output tokens": 0,
            "cached tokens": 0,
            "amount": "12345678901234567890.000000000001",
            "currency": "EUR",
            "unpriced quantity": 40,
        },
        {
            "window start (UTC)": f"{minute - MINUTE:%Y-%m-%d %H:%M}",
            "state": "closing",
            "account": "a2",
            "requests": 2,
            "input tokens": 0,
            "output tokens": 0,
            "cached tokens": 0,
            "amount": "0.000000000000",
            "currency": "USD",
            "unpriced quantity": 0,
        },
    ]

    with psycopg.connect(database) as connection:
        connection.execute("UPDATE usage_windows SET quantity = 5 WHERE quantity = 3")
    assert page.run().dataframe[0].value["requests"].tolist() == [5, 2]


@pytest.mark.parametrize(
    ("frontier", "states"),
    [
        (timedelta(minutes=1) - timedelta(microseconds=1), ["open"]),
        (timedelta(minutes=1), ["closing"]),
        (timedelta(minutes=6) - timedelta(microseconds=1), ["closing"]),
        (timedelta(minutes=6), []),
    ],
)
def test_a_window_leaves_the_page_exactly_when_it_closes(
    page: AppTest, database: str, frontier: timedelta, states: list[str]
) -> None:
    minute = this_minute()
    progress(database, "billing", minute + frontier, report=report())
    write(database, "usage_windows", window(minute))
    page.run()
    assert [state for table in page.dataframe for state in table.value["state"]] == states


def test_an_outage_keeps_the_last_values_and_says_how_old_they_are(
    page: AppTest, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress(database, "billing", this_minute(), report=report())
    write(database, "usage_windows", window(this_minute(), 7))
    assert "Backend down" not in texts(page.run())

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection to server failed: password weir-secret")

    monkeypatch.setattr(psycopg, "connect", refuse)
    shown = texts(page.run())
    assert shown.count("Backend down") == 2
    assert "Last values, read" in shown
    assert "secret" not in shown
    assert page.dataframe[0].value["requests"].tolist() == [7]
    assert page.metric[0].value == "1,234"

    monkeypatch.undo()
    monkeypatch.setenv(panel.URL_VARIABLE, database)
    monkeypatch.setattr(panel, "SHARED_FOR_SECONDS", 0.0)
    assert "Backend down" not in texts(page.run())


def test_a_database_that_never_answered_shows_its_address_without_the_password(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(panel.URL_VARIABLE, "postgresql://reader:hidden@127.0.0.1:1/weir")
    shown = texts(page.run())
    assert "The database 127.0.0.1:1/weir does not answer" in shown
    assert "hidden" not in shown
    assert "reader" not in shown


def test_a_missing_address_says_what_to_do(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(panel.URL_VARIABLE)
    assert "WEIR_POSTGRES_URL is not set" in texts(page.run())
