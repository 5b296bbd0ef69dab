"""A month costs one sum, whoever asks: lines, totals, pages of the API, the dashboard, forecasts and FOCUS.

Method: the worlds of `test_money_of_plans` and `test_money_of_pools`, before each close and after it. Every way of
asking is compared with the lines of `read_month`, which these tests compare with an independent sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from api.bills import _page_key
from cli.reading import read_only
from dashboard.backend import Backend
from dashboard.queries.bills import read_bills
from dashboard.settings import Settings
from dashboard.views.bills import totals_of
from jobs.queries.bills import read_month, read_totals
from jobs.queries.forecasts import forecast_rows
from jobs.queries.pages import Page
from jobs.queries.reading import Database
from metering.invoices import FEES
from tests.exports import focus_1_4
from tests.pipelines import test_money_of_plans as of_plans
from tests.pipelines import test_money_of_pools as of_pools
from tests.pipelines.closing import NOON, Books
from tests.pipelines.plan_world import Setting, books_with_plans

Sums = dict[tuple[str, str | None], Fraction]
Row = Mapping[str, Any]


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_with_plans(database)


def sums(rows: Iterable[Row], amount: str = "amount") -> Sums:
    """By account and currency, those of 0 left out."""
    found: defaultdict[tuple[str, str | None], Fraction] = defaultdict(Fraction)
    for row in rows:
        found[row["account"], row["currency"]] += Fraction(row[amount] or 0)
    return {key: value for key, value in found.items() if value}


def assert_one_sum(books: Books, folder: Path, month: date, accounts: Sequence[str], *, is_open: bool) -> None:
    """`is_open`: nobody was invoiced for the month, so all of its usage is in its own file of FOCUS."""
    with read_only(books.database) as reader:
        lines = read_month(reader, month).lines
        whole, of_usage = sums(lines), sums(line for line in lines if line["kind"] not in FEES)
        assert sums(read_totals(reader, month, accounts)) == whole
        assert alike(pages(reader, month, 1), lines)
        assert alike((line for name in accounts for line in read_month(reader, month, [name]).lines), lines)
        forecasts = list(forecast_rows(reader, month, [], NOON))
        assert sums(forecasts, "so_far") == of_usage
        assert alike((row for name in accounts for row in forecast_rows(reader, month, [name], NOON)), forecasts)
    shown = totals_of(read_bills(Backend(Settings(postgres_url=books.database, tables=str(folder))), month))
    assert {(of.period.account, of.currency): Fraction(of.amount) for of in shown if of.amount} == whole
    charged = in_focus(books, folder, month)
    assert charged == whole or not is_open
    of_each = [in_focus(books, folder / name, month, [name]) for name in accounts]
    assert {key: amount for each in of_each for key, amount in each.items()} == charged


def alike(rows: Iterable[Row], others: Iterable[Row]) -> bool:
    """Whether they are the same, in any order."""
    return sorted(map(repr, rows)) == sorted(map(repr, others))


def pages(reader: Database, month: date, limit: int) -> Iterator[Row]:
    after: tuple[Any, ...] = ()
    while rows := list(read_month(reader, month, None, Page(limit, after)).lines):
        yield from rows
        after = tuple(_page_key(rows[-1]))


def in_focus(books: Books, folder: Path, month: date, accounts: Sequence[str] = ()) -> Sums:
    rows = focus_1_4.exported(books.database, folder, month, accounts).charges
    return sums(
        {
            "account": row["SubAccountId"] or row["BillingAccountId"],
            "currency": row["BillingCurrency"],
            "amount": row["BilledCost"],
        }
        for row in rows
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1004))
@pytest.mark.parametrize("setting", of_plans.SETTINGS.values(), ids=of_plans.SETTINGS)
def test_a_month_of_plans_costs_one_sum(books: Books, tmp_path: Path, seed: int, setting: Setting) -> None:
    world = of_plans.Everything(seed, setting)
    of_plans.store_ladders(books, world)
    close = of_plans.closing(books, setting)
    for month in world.quarter(books):
        assert_one_sum(books, tmp_path, month, list(world.zones), is_open=not invoiced(books, month))
        of_plans.closed(close, month, 500)
        if world.chance.random() < 0.4:
            of_plans.again(books, close, month)
        for each in setting.months[: setting.months.index(month) + 1]:
            assert_one_sum(books, tmp_path, each, list(world.zones), is_open=False)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1004))
def test_a_month_of_pools_costs_one_sum(books: Books, tmp_path: Path, seed: int) -> None:
    world = of_pools.Pools(seed)
    of_plans.store_ladders(books, world)
    close = of_plans.closing(books, of_pools.SETTING)
    for month in world.quarter(books):
        assert_one_sum(books, tmp_path, month, list(world.zones), is_open=not invoiced(books, month))
        of_pools.closed(close, month, 500)
        world.closed = month
        for each in of_pools.SETTING.months[: of_pools.SETTING.months.index(month) + 1]:
            assert_one_sum(books, tmp_path, each, list(world.zones), is_open=False)


def invoiced(books: Books, month: date) -> bool:
    return bool(books.rows("SELECT FROM invoices WHERE period = %s LIMIT 1", month))
