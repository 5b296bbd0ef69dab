"""Pages of a list, read by a real Postgres: together they are the list, whatever is null or repeated in its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from cli.reading import read_only
from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database

texts = st.none() | st.sampled_from(["", "a", "A", "b", "ä", "a b", "_", "Zoë"])
keys = st.tuples(texts, st.none() | st.integers(-3, 3), texts)
LIST = """
    SELECT row ->> 0 AS name, (row ->> 1)::bigint AS number, row ->> 2 AS "other name"
    FROM jsonb_array_elements(%(rows)s) AS row
"""
KEY = ("name", "number", '"other name"')


@pytest.fixture(scope="module")
def connection(postgres_url: str) -> Iterator[Database]:
    with read_only(postgres_url) as opened:
        yield opened


def read(database: Database, rows: Any, page: Page | None) -> list[tuple[Any, ...]]:
    statement, more = paged(f"{LIST} ORDER BY {', '.join(KEY)}", KEY, page)
    found = database.execute(statement, {"rows": Jsonb(rows), **more}).fetchall()
    return [tuple(row.values()) for row in found]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(keys, unique=True, max_size=25), limit=st.integers(1, 26))
def test_pages_together_are_the_list(connection: Database, rows: list[Any], limit: int) -> None:
    whole = read(connection, rows, None)
    found: list[tuple[Any, ...]] = []
    page = read(connection, rows, Page(limit))
    while page:
        assert len(page) <= limit
        found += page
        # As a cursor carries it.
        page = read(connection, rows, Page(limit, tuple(json.loads(json.dumps(page[-1])))))
    assert found == whole


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(keys, unique=True, min_size=1, max_size=25), data=st.data())
def test_a_page_is_the_same_when_rows_before_it_come_or_go(connection: Database, rows: list[Any], data: Any) -> None:
    whole = read(connection, rows, None)
    place = data.draw(st.integers(0, len(whole) - 1))
    before = data.draw(st.lists(st.sampled_from(whole[: place + 1]), unique=True))
    assert read(connection, [*before, *whole[place + 1 :]], Page(50, whole[place])) == whole[place + 1 :]


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values, not 1"):
        paged(LIST, KEY, Page(1, ("a",)))
