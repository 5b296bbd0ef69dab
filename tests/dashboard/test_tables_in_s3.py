"""The same pages where the tables are in an object store, which the dashboard finds by the variables of the jobs."""

from __future__ import annotations

import pytest

from tests.dashboard.conftest import Pages, texts
from tests.dashboard.seeding import Day, seed
from tests.streaming.test_object_store import store

__all__ = ["store"]


@pytest.fixture
def in_store(connected: str, database: str, store: str, day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TABLES", store)
    seed(database, store, day)


@pytest.mark.usefixtures("in_store")
@pytest.mark.parametrize(
    "name", ["overview", *(pytest.param(name, marks=pytest.mark.long) for name in ("joins", "late"))]
)
def test_tables_are_read_from_an_object_store(open_page: Pages, name: str) -> None:
    page = open_page(name)
    assert "backend down" not in texts(page)
    assert [element.value for element in page.markdown if ": live]" in element.value]


@pytest.mark.usefixtures("in_store")
def test_requests_are_read_from_an_object_store(open_page: Pages) -> None:
    page = open_page("bills", account="acme", line="small-1 · requests · price lsn 10 · EUR")
    assert "backend down" not in texts(page)
    assert len(page.dataframe[3].value) > 10
