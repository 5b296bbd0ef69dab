"""A dashboard without a browser: pages as Streamlit draws them, on a real database and real Delta tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard import backend, digest, panel
from tests.dashboard.reader import reader_url
from tests.dashboard.seeding import Day, seed

Pages = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every question is asked anew, and no variable of this machine plays a part."""
    for name in ("POSTGRES_URL", "TABLES", "PROMETHEUS_URL", "ALERTMANAGER_URL", "NAMESPACE", "ACCOUNTS"):
        monkeypatch.delenv(f"WEIR_{name}", raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    """What a process keeps between questions: readings, tables and what their files add up to."""
    st.cache_resource.clear()
    panel.memory().is_shared = False
    backend.HANDLES.clear()
    digest.DIGESTS.clear()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The root of the Delta tables; empty."""
    return tmp_path / "tables"


@pytest.fixture
def connected(database: str, tables: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The dashboard reads `database`, as the read-only role, and `tables`; gives the reader's address."""
    url = reader_url(database)
    monkeypatch.setenv("WEIR_POSTGRES_URL", url)
    monkeypatch.setenv("WEIR_TABLES", str(tables))
    return url


@pytest.fixture
def day() -> Day:
    """Forty minutes up to now."""
    return Day(now=datetime.now(UTC))


@pytest.fixture
def seeded(connected: str, database: str, tables: Path, day: Day) -> str:
    """The same, filled with `day`; gives the owner's address."""
    seed(database, tables, day)
    return database


@pytest.fixture
def open_page() -> Pages:
    """Draws the page `name` with a URL's query; `run()` on what it gives draws it again."""

    def opened(name: str, **query: str) -> AppTest:
        page = AppTest.from_string(f"from dashboard.views import {name}\n{name}.show()\n", default_timeout=60)
        for key, value in query.items():
            page.query_params[key] = value
        return page.run()

    return opened


def texts(page: AppTest) -> str:
    """Everything that is written on a page; it must not have failed."""
    assert not page.exception, [error.value for error in page.exception]
    kinds = (page.title, page.markdown, page.caption, page.info, page.warning, page.error, page.success)
    return "\n".join(str(element.value) for kind in kinds for element in kind)
