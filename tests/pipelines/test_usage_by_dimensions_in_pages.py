"""Usage by dimensions in pages and through filters. Oracle: sums in Python over the same random days."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from cli.reading import read_only
from jobs.queries.pages import Page
from jobs.queries.periods import Window
from jobs.queries.reading import Database
from jobs.queries.usage import UsageQuery, quantity_rows, usage_rows
from jobs.queries.usage_keys import Key
from tests.conftest import fresh_database
from tests.database_rows import write

FIRST = date(2026, 10, 30)


def day(number: int, account: str, model: str, team: str | None, quantity: int, *, is_other: bool) -> dict[str, Any]:
    """A row of `usage_days`."""
    on = FIRST + timedelta(days=number)
    start = datetime.combine(on, time(10), UTC)
    dimensions = None if is_other else Jsonb({} if team is None else {"team": team})
    key = {"account": account, "model": model, "meter": "requests", "currency": "EUR", "price_version": 1}
    spans = {"first_window": start, "last_window_end": start + timedelta(minutes=1), "unit_price": 2}
    return {
        **key,
        **spans,
        "day": on,
        "dimensions": dimensions,
        "is_other": is_other,
        "quantity": quantity,
        "unit_price": 2,
    }


@pytest.fixture(scope="module")
def days() -> list[dict[str, Any]]:
    chance = random.Random(1)
    keys = [(number, account, model) for number in range(4) for account in ("a", "b") for model in ("m1", "m2")]
    return [
        day(*key, team, chance.randint(1, 9), is_other=is_other)
        for key in keys
        for team, is_other in ((None, False), ("x", False), ("other", False), (None, True))
    ]


@pytest.fixture(scope="module")
def connection(postgres_url: str, days: list[dict[str, Any]]) -> Iterator[Database]:
    with fresh_database(postgres_url) as database:
        write(database, "usage_days", *days)
        with read_only(database) as opened:
            yield opened


BY_TEAM = UsageQuery(window=Window.DAY, group_by=(Key.ACCOUNT,), dimensions=("team",), has_details=True)


@pytest.mark.parametrize("limit", [1, 3, 1_000])
@pytest.mark.parametrize("window", [Window.DAY, Window.MONTH])
def test_pages_by_a_dimension_are_the_list(connection: Database, window: Window, limit: int) -> None:
    query = replace(BY_TEAM, window=window)
    whole, found = list(usage_rows(connection, query)), []
    page = list(usage_rows(connection, replace(query, page=Page(limit))))
    while page:
        found += page
        after = json.loads(json.dumps(query.key_of(page[-1]), default=str))
        page = list(usage_rows(connection, replace(query, page=Page(limit, tuple(after)))))
    assert found == whole
    assert len({query.key_of(row) for row in whole}) == len(whole) > 4


@pytest.mark.parametrize("values", [("x",), ("x", "other"), ("nobody's",)])
def test_a_filter_by_a_dimension_omits_rows_without_it_and_the_row_other(
    connection: Database, days: list[dict[str, Any]], values: tuple[str, ...]
) -> None:
    expected: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in days:
        if not row["is_other"] and row["dimensions"].obj.get("team") in values:
            expected[row["day"], row["model"]] += row["quantity"]
    query = UsageQuery(window=Window.DAY, group_by=(Key.MODEL,), filters={"team": values})
    found = {(row["window_start"].date(), row["model"]): row["quantity"] for row in usage_rows(connection, query)}
    assert found == expected
    (total,) = list(quantity_rows(connection, replace(query, group_by=()), in_windows=False)) or [{"quantity": 0}]
    assert total["quantity"] == sum(expected.values())


def test_quantities_by_a_dimension_and_window_add_up_to_all(connection: Database, days: list[dict[str, Any]]) -> None:
    query = UsageQuery(window=Window.MONTH, group_by=(), dimensions=("team",), filters={"model": ("m1",)})
    rows = list(quantity_rows(connection, query, in_windows=True))
    assert sum(row["quantity"] for row in rows) == sum(row["quantity"] for row in days if row["model"] == "m1")
    assert {(row["window_start"].month, row["team"], row["is_other"]) for row in rows} == {
        (month, *kind)
        for month in (10, 11)
        for kind in ((None, False), ("x", False), ("other", False), ("other", True))
    }
