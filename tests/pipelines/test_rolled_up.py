"""A parent's usage is its own and all below it, in each currency by itself: the sum of what each is listed with.

Method: `oracle`. Random trees of accounts; what is listed one by one, added up in Python along the parents.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from catalog.deletion import delete_row
from cli.main import app
from cli.reading import read_only
from dashboard.backend import Backend
from dashboard.queries.bills import read_bills
from dashboard.settings import Settings
from dashboard.views.bill_tree import branches
from dashboard.views.bills import totals_of
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key
from jobs.streams import CatalogTopic
from tests.database_rows import progress, window, write, write_windows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ACCOUNTS = [f"a{number}" for number in range(9)]
_INSERT = "INSERT INTO catalog.accounts (account, name, plan, currency, parent) VALUES (%s, %s, 'p', 'EUR', %s)"


@pytest.fixture(params=[1, 2, 3])
def tree(request: pytest.FixtureRequest, database: str) -> tuple[str, dict[str, str | None]]:
    """A database with usage of accounts, and the parents of those that the catalog has."""
    chance = random.Random(request.param)
    parents = {name: chance.choice([None, *ACCOUNTS[max(0, n - 3) : n]]) for n, name in enumerate(ACCOUNTS)}
    parents["a1"] = "a0"
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    with psycopg.connect(database) as connection:
        connection.cursor().executemany(_INSERT, [(name, name, parent) for name, parent in parents.items()])
    rows: dict[Any, dict[str, Any]] = {}
    for _ in range(120):
        account, currency = chance.choice([*ACCOUNTS[1:], "gone"]), chance.choice(["EUR", "USD", None])
        meter, minute = chance.choice(["requests", "input_tokens"]), chance.randrange(3)
        price = None if currency is None else Decimal(chance.randint(1, 10**6)).scaleb(-12)
        start = NOON + timedelta(minutes=minute)
        key: dict[str, Any] = {
            "account": account,
            "model": "m",
            "meter": meter,
            "currency": currency,
            "window_start": start,
        }
        key |= {"window_end": start + timedelta(minutes=1), "price_version": None if price is None else 7}
        rows.setdefault(tuple(key.values()), key | {"unit_price": price, "quantity": chance.randint(1, 10**9)})
    write_windows(database, *rows.values())
    return database, parents


def heads_of(account: str, parents: dict[str, str | None], asked: tuple[str, ...]) -> list[str]:
    """Whom an account's usage is summed into."""
    line = [account]
    while (above := parents.get(line[-1])) is not None:
        line.append(above)
    return [name for name in line if name in asked] if asked else line[-1:]


def listed(database: str, **asked: Any) -> dict[Any, list[Decimal]]:
    """By account, meter and currency: quantity, amount, and what has no price."""
    numbers = ("quantity", "amount", "unpriced_quantity")
    with read_only(database) as connection:
        query = UsageQuery(window=Window.HOUR, group_by=(Key.ACCOUNT, Key.METER), **asked)
        rows = list(usage_rows(connection, query))
    return {
        (row["account"], row["meter"], row["currency"]): [Decimal(str(row[name])) for name in numbers] for row in rows
    }


@pytest.mark.parametrize("accounts", [(), ("a0",), ("a0", "a1", "a2", "gone", "nobody")])
def test_oracle_a_parent_is_the_sum_of_its_descendants(
    tree: tuple[str, dict[str, str | None]], accounts: tuple[str, ...]
) -> None:
    database, parents = tree
    expected: defaultdict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    for (account, *rest), numbers in listed(database).items():
        for head in heads_of(account, parents, accounts):
            expected[head, *rest] = [a + b for a, b in zip(expected[head, *rest], numbers, strict=True)]
    assert len(expected) > 1
    assert listed(database, accounts=accounts, rolls_up=True) == expected


def test_the_command_refuses_to_sum_into_accounts_that_it_does_not_list() -> None:
    asked = CliRunner().invoke(app, ["usage", "--roll-up", "--group-by", "meter"])
    assert asked.exit_code == 2
    assert "add account to" in asked.output


MONTHS = [datetime(2026, month, 1, tzinfo=UTC) for month in range(1, 5)]


@pytest.fixture
def moved(database: str) -> str:
    """Two parents, and a child of the first with usage of 1, 2, 4 and 8 EUR in the middle of four months."""
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    with psycopg.connect(database) as connection:
        for name, parent in (("old", None), ("new", None), ("child", "old")):
            connection.execute(_INSERT, [name, name, parent])
    middles = [month + timedelta(days=14) for month in MONTHS]
    write_windows(
        database, *(window(at, 2**n, account="child", unit_price=1, model="m") for n, at in enumerate(middles))
    )
    progress(database, "billing", datetime(2026, 5, 1, tzinfo=UTC))
    return database


def listed_by_month(database: str, size: Window, *, dimensions: tuple[str, ...] = (), **asked: Any) -> Any:
    sums: defaultdict[tuple[str, int], int] = defaultdict(int)
    with read_only(database) as connection:
        query = UsageQuery(window=size, group_by=(Key.ACCOUNT,), rolls_up=True, dimensions=dimensions, **asked)
        for row in usage_rows(connection, query):
            start, amount = row["window_start"], row["amount"]
            assert isinstance(start, datetime)
            assert isinstance(amount, Decimal)
            sums[str(row["account"]), start.month] += int(amount)
    return sums


def billed(database: str, month: datetime) -> list[tuple[str, int, int]]:
    bills = read_bills(Backend(Settings(postgres_url=database)), month.date())
    tree = branches(totals_of(bills), bills.periods)
    return [(branch.account, branch.depth, int(branch.amount or 0)) for branch in tree]


@pytest.mark.parametrize("deleted_at", [None, "2999-01-01T00:00Z", "2026-03-10T00:00Z"])
def test_a_child_that_is_deleted_stays_in_the_bills_of_the_months_that_it_began(
    moved: str, deleted_at: str | None
) -> None:
    at = None if deleted_at is None else datetime.fromisoformat(deleted_at)
    delete_row(moved, CatalogTopic.ACCOUNTS, {"account": "child"}, at, "ann", backdates=True)
    ends = 4 if deleted_at == "2026-03-10T00:00Z" else 5
    expected = {("old" if month < ends else "child", month): 2 ** (month - 1) for month in range(1, 5)}
    assert listed_by_month(moved, Window.MONTH) == expected
    below_old = {key: amount for key, amount in expected.items() if key[0] == "old"}
    assert listed_by_month(moved, Window.MONTH, accounts=("old",)) == below_old
    for month in MONTHS:
        amount = 2 ** (month.month - 1)
        whole = [("old", 0, amount), ("child", 1, amount)] if month.month < ends else [("child", 0, amount)]
        assert billed(moved, month) == whole


@pytest.mark.parametrize(("since", "first"), [("2026-03-01Z", 3), ("2026-02-01T00:00:01Z", 3), ("2026-03-02Z", 4)])
@pytest.mark.parametrize("size", list(Window))
def test_an_account_that_moves_is_billed_with_its_new_parent_from_the_next_month_on(
    moved: str, since: str, first: int, size: Window
) -> None:
    """In windows of whatever length: a month's parts are of one bill."""
    with psycopg.connect(moved) as connection:
        connection.execute(
            "UPDATE catalog.accounts SET parent = 'new', effective_from = %s WHERE account = 'child'", [since]
        )
    expected = {("old" if month < first else "new", month): 2 ** (month - 1) for month in range(1, 5)}
    assert listed_by_month(moved, size) == expected
    for month in MONTHS:
        head, amount = "old" if month.month < first else "new", 2 ** (month.month - 1)
        assert billed(moved, month) == [(head, 0, amount), ("child", 1, amount)]


@pytest.mark.parametrize(
    ("since", "parent"), [("2026-03-01T00:10Z", "new"), ("2026-04-02T00:00Z", "new"), (None, None)]
)
def test_an_account_that_is_made_again_is_part_of_the_bill_of_its_parent_from_that_month_on(
    moved: str, since: str | None, parent: str | None
) -> None:
    """Between its deletion and that it has no parent; without this, the month would be on nobody's bill but its own."""
    delete_row(
        moved,
        CatalogTopic.ACCOUNTS,
        {"account": "child"},
        datetime(2026, 2, 28, 23, 50, tzinfo=UTC),
        "ann",
        backdates=True,
    )
    row = {"account": "child", "name": "Child", "plan": "p", "currency": "EUR", "parent": parent}
    write(moved, "catalog.accounts", {**row, "effective_from": since or "2026-03-01T00:10Z"})
    begins = 3 if since is None else int(since[5:7])
    heads = ["old", "old", *((parent or "child") if month >= begins else "child" for month in (3, 4))]
    amounts = {(head, month): 2 ** (month - 1) for month, head in enumerate(heads, start=1)}
    assert listed_by_month(moved, Window.MONTH) == amounts
    for month, head in zip(MONTHS, heads, strict=True):
        amount = 2 ** (month.month - 1)
        assert billed(moved, month) == (
            [("child", 0, amount)] if head == "child" else [(head, 0, amount), ("child", 1, amount)]
        )


def test_days_by_dimensions_go_by_each_accounts_own_months(moved: str) -> None:
    """It moves an hour before the first of March of its zone, and an hour after it by UTC."""
    with psycopg.connect(moved) as connection:
        connection.execute("UPDATE catalog.account_zones SET timezone = 'America/Los_Angeles' WHERE account = 'child'")
        connection.execute(
            "UPDATE catalog.accounts SET parent = 'new', effective_from = '2026-03-01T01:00Z' WHERE account = 'child'"
        )
    by_key = listed_by_month(moved, Window.MONTH, dimensions=("api_key_id",))
    assert by_key == {("old", 1): 1, ("old", 2): 2, ("new", 3): 4, ("new", 4): 8}
    assert listed_by_month(moved, Window.MONTH) == {("old", 1): 1, ("old", 2): 2, ("old", 3): 4, ("new", 4): 8}
    assert billed(moved, MONTHS[2]) == [("new", 0, 4), ("child", 1, 4)]
