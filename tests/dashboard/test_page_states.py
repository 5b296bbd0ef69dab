"""Every page in each state of its data: never any, idle, stale, backend down, not connected; none may fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from dashboard.backend import Backend, Unavailable
from dashboard.queries.applications import read_applications
from dashboard.queries.windows import WindowFilter, read_windows
from dashboard.settings import Settings
from jobs.runtime.postgres.downgrade import OLDEST, downgrade
from metering.vocabulary import Job
from tests.dashboard.conftest import Pages, texts
from tests.dashboard.seeding import Day, seed
from tests.database_rows import progress

FED = ("overview", "windows", "sessions", "late", "joins", "watch", "bills", "sources")
"""Pages whose data comes from the database as applications write it; alerts have a test file of their own."""
DATABASE = (*FED, "invoices", "models")


@pytest.mark.parametrize("name", FED)
def test_an_empty_database_is_shown_as_having_no_data_yet(open_page: Pages, connected: str, name: str) -> None:
    page = open_page(name)
    shown = texts(page)
    assert "no data yet" in shown
    assert "has not run on this database yet" in shown or name == "overview"
    assert not page.error
    assert not page.dataframe


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("name", FED)
def test_fresh_data_is_live_and_shows_its_age(open_page: Pages, seeded: str, name: str) -> None:
    page = open_page(name)
    shown = texts(page)
    assert ":green-badge[:material/play_arrow: live]" in page.markdown[0].value
    assert "p to date with all" in shown or "Last report " in shown
    assert not page.error


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("name", FED)
def test_old_data_of_running_applications_is_idle(
    open_page: Pages, connected: str, database: str, tables: Path, name: str
) -> None:
    seed(database, tables, Day(now=datetime.now(UTC) - timedelta(hours=2)))
    with psycopg.connect(database) as connection:
        connection.execute("""UPDATE jobs SET progress = progress || '{"records_behind": 0}'""")
    page = open_page(name)
    assert "idle]" in page.markdown[0].value
    assert not page.error


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("name", FED)
def test_a_silent_application_makes_its_data_stale_and_keeps_it(open_page: Pages, seeded: str, name: str) -> None:
    fresh = open_page(name)
    with psycopg.connect(seeded) as connection:
        connection.execute("UPDATE jobs SET updated_at = now() - interval '10 minutes'")
    page = open_page(name)
    assert "stale" in page.markdown[0].value
    assert "for 10 min: these are its last values" in texts(page) or name == "overview"
    assert [len(table.value) for table in page.dataframe] == [len(table.value) for table in fresh.dataframe]


def test_an_application_that_was_killed_and_switched_off_is_not_listed_as_stale_for_ever(database: str) -> None:
    backend = Backend(Settings(postgres_url=database))
    for job in (Job.JOINS, Job.ANALYTICS):
        progress(database, job, None)
    assert set(read_applications(backend).by_job) == {Job.JOINS, Job.ANALYTICS}
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET updated_at = updated_at - interval '2 days'")
    assert set(read_applications(backend).by_job) == {Job.JOINS}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("name", DATABASE)
def test_an_outage_keeps_the_last_values_with_their_age(
    open_page: Pages, seeded: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_page(name, account="acme") if name == "bills" else open_page(name)
    known = [str(table.value) for table in before.dataframe]

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection to server failed: password weir-secret")

    with monkeypatch.context() as outage:
        outage.setattr(psycopg, "connect", refuse)
        down = open_page(name, account="acme") if name == "bills" else open_page(name)
        shown = texts(down)
        assert "backend down" in down.markdown[0].value
        assert "Last values, read " in shown
        assert "secret" not in shown
        assert [str(table.value) for table in down.dataframe] == known
    assert "backend down" not in texts(open_page(name))


@pytest.mark.parametrize("name", DATABASE)
def test_a_database_that_never_answered_shows_its_address_without_the_password(
    open_page: Pages, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_POSTGRES_URL", "postgresql://reader:hidden@127.0.0.1:1/weir")
    shown = texts(open_page(name))
    assert "The database 127.0.0.1:1/weir does not answer" in shown
    assert "hidden" not in shown
    assert "reader" not in shown


@pytest.mark.parametrize("name", DATABASE)
def test_a_missing_address_is_explained(open_page: Pages, name: str) -> None:
    shown = texts(open_page(name))
    assert "not connected" in shown
    assert "WEIR_POSTGRES_URL is not set" in shown


def test_missing_tables_are_explained(open_page: Pages, seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_TABLES")
    assert "WEIR_TABLES is not set" in texts(open_page("joins"))


def test_a_query_that_takes_too_long_is_an_outage_with_its_reason(connected: str, seeded: str) -> None:
    backend = Backend(Settings(postgres_url=connected), statement_timeout_seconds=0.2)
    with psycopg.connect(seeded) as connection:
        connection.execute("LOCK TABLE usage_windows IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match=r"took longer than 0\.2 s: choose"):
            read_windows(backend, WindowFilter())
    assert read_windows(backend, WindowFilter()).windows


def test_an_older_schema_is_named_as_that(connected: str, database: str) -> None:
    downgrade(database, OLDEST)
    backend = Backend(Settings(postgres_url=connected))
    with (
        pytest.raises(Unavailable, match="has the schema of another version of Weir: migrate it"),
        backend.snapshot() as cursor,
    ):
        cursor.execute("SELECT * FROM declared_windows")
