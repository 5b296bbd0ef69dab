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

from cli.main import app
from cli.periods import Window
from cli.reading import read_only
from cli.usage import UsageQuery, usage_rows
from cli.usage_keys import Key
from tests.database_rows import write, write_windows

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
def test_oracle_what_is_rolled_up_is_the_sum_of_what_stands_below(
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
