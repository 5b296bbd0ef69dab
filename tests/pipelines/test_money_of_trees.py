"""Accounts of a tree that change their currency, plan and parent, end, and are closed one before the other.

Method: the world of `test_money_of_plans`, with each plan in two currencies, EUR and JPY, and accounts below others.
The oracle knows what each account was from each instant on, and adds up fractions. Bills, their tree, totals, invoices
with their corrections and FOCUS must be equal to it, to the last digit, each currency by itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.rows import dict_row

from cli.reading import read_only
from dashboard.backend import Backend
from dashboard.queries.bills import read_bills
from dashboard.settings import Settings
from dashboard.views.bill_tree import branches
from dashboard.views.bills import totals_of
from jobs.audit.bills.invoices import check_invoices
from jobs.queries.bills import read_month, read_totals
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.api_reader import API_READER
from tests.exports import focus_1_4
from tests.pipelines.closing import Books
from tests.pipelines.plan_world import Setting, books_with_plans
from tests.pipelines.test_money_of_plans import Everything, again, closed, closing, store_ladders, versions

PLANS = {f"{plan} in {currency}": (plan, currency) for currency in ("EUR", "JPY") for plan in ("basic", "pro")}
DECIMALS = {"EUR": 2, "JPY": 0}
SETTING = Setting(
    zones=(("a", "UTC"), ("b", "Asia/Tokyo"), ("c", "America/Lima"), ("d", "Europe/Berlin"), ("e", "Asia/Tokyo"))
)
FIRST = datetime.min.replace(tzinfo=UTC)
Money = dict[tuple[str, str], Fraction]
"""By account and currency."""


class Tree(Everything):
    """A plan of this world is one of PLANS. A parent comes before its children by name, so there is no circle."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SETTING)
        self.plan_names = list(PLANS)
        self.versions = {plan: versions(100 * number, SETTING.begins) for number, plan in enumerate(PLANS, start=1)}
        self.was: defaultdict[str, list[tuple[datetime, bool, str | None]]] = defaultdict(list)
        """Of each account from when on: whether it is there, and its parent."""

    def terms_of(self, plan: str) -> tuple[str, str]:
        return PLANS[plan]

    def rounded(self, plan: str, amount: Fraction) -> Fraction:
        return SETTING._replace(decimals=DECIMALS[PLANS[plan][1]]).rounded(amount)

    def plan(self, books: Books, name: str, plan: str, since: datetime) -> None:
        """With the plan its currency, and sometimes another parent."""
        parent = self.was[name][-1][2] if self.was[name] else None
        if self.chance.random() < 0.6:
            there = [other for other in self.zones if other < name and self.was[other] and self.was[other][-1][1]]
            parent = self.chance.choice([None, *there])
        elif parent is not None and not self.was[parent][-1][1]:
            parent = None
        of_plan, currency = PLANS[plan]
        with books.connection.transaction():
            books.connection.execute(
                "INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from, parent)"
                " VALUES (%(name)s, %(name)s, %(plan)s, %(currency)s, %(zone)s, %(since)s, %(parent)s)"
                " ON CONFLICT (account) DO UPDATE SET plan = excluded.plan, currency = excluded.currency,"
                " effective_from = excluded.effective_from, parent = excluded.parent",
                {"name": name, "plan": of_plan, "currency": currency, "zone": self.zones[name], "since": since}
                | {"parent": parent},
            )
        self.plans[name] = [*((at, other) for at, other in self.plans[name] if at < since), (since, plan)]
        before = [held for held in self.was[name] if held[0] < since]
        self.was[name] = [*before, (since if before else FIRST, True, parent)]

    def change(self, books: Books, now: datetime) -> None:
        """As before; deletions are seen by the plan that an account no longer has."""
        super().change(books, now)
        for name, plans in self.plans.items():
            since, plan = plans[-1]
            if plan is None and self.was[name][-1][1]:
                self.was[name] = [held for held in self.was[name] if held[0] < since]
                self.was[name].append((since, False, None))

    def is_parent(self, name: str) -> bool:
        return any(held[-1][1] and held[-1][2] == name for held in self.was.values())

    def parent(self, name: str, month: date) -> str | None:
        """Of the first instant of the account's month at which it is there."""
        zone = ZoneInfo(self.zones[name])
        start, end = (
            datetime(first.year, first.month, 1, tzinfo=zone).astimezone(UTC)
            for first in (month, (month + timedelta(days=31)).replace(day=1))
        )
        held = self.was[name]
        for (since, is_there, parent), until in zip(held, [*(at for at, *_ in held[1:]), None], strict=True):
            if is_there and since < end and (until is None or until > start):
                return parent
        return None

    def head(self, name: str, month: date) -> str:
        """The topmost account above it."""
        parent = self.parent(name, month)
        return name if parent is None else self.head(parent, month)

    def amounts(self, month: date, *, rounds: bool = False) -> Money:
        """What each account's month comes to in each currency."""
        found: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for name in self.zones:
            for (_, plan), amount in self.month(name, month, rounds=rounds).items():
                found[name, PLANS[plan][1]] += amount
        return nonzero(found)


def nonzero(amounts: Mapping[Any, Fraction]) -> dict[Any, Fraction]:
    return {key: amount for key, amount in amounts.items() if amount}


def billed(books: Books, world: Tree, month: date) -> Money:
    """By the lines of bills, which totals and the tree must equal."""
    sums: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    with read_only(books.database) as reader:
        for line in read_month(reader, month).lines:
            sums[line["account"], line["currency"]] += Fraction(line["amount"])
        totals = read_totals(reader, month, list(world.zones))
    of_key(books, month, world.chance.sample(list(world.zones), 2))
    found = nonzero(sums)
    assert nonzero({(row["account"], row["currency"]): Fraction(row["amount"]) for row in totals}) == found
    rolled: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for (account, currency), amount in found.items():
        above: str | None = account
        while above is not None:
            rolled[above, currency] += amount
            above = world.parent(above, month)
    bills = read_bills(Backend(Settings(postgres_url=books.database)), month)
    tree = branches(totals_of(bills), bills.periods)
    shown = {(branch.account, branch.currency): Fraction(branch.amount or 0) for branch in tree}
    assert len(shown) == len(tree)
    assert nonzero(shown) == nonzero(rolled)
    return found


def of_key(books: Books, month: date, accounts: list[str]) -> None:
    """Somebody who may see these accounts alone has the lines and totals of somebody who may see all."""
    bills = []
    for shown in ("*", json.dumps(accounts)):
        with psycopg.connect(in_schema(books.database), row_factory=dict_row) as session:
            session.execute(f"SET ROLE {API_READER}")
            session.execute("SELECT set_config('weir.accounts', %s, true)", [shown])
            lines = read_month(session, month, accounts).lines
            bills.append((lines, read_totals(session, month, accounts)))
    assert bills[0] == bills[1]


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_with_plans(database)


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("seed", range(30))
def test_accounts_of_a_tree_that_change_their_currency_are_billed_and_invoiced_by_an_independent_sum(
    books: Books, tmp_path: Path, seed: int
) -> None:
    world = Tree(seed)
    store_ladders(books, world)
    close = closing(books, SETTING)
    for month in world.quarter(books):
        for each in SETTING.months[: SETTING.months.index(month) + 1]:
            assert billed(books, world, each) == world.amounts(each)
        names = world.chance.sample(list(world.zones), len(world.zones))
        for name in names[: world.chance.randint(0, 3)]:
            assert {row["outcome"] for row in close(month, [name])} <= {"issued", "closed already", "not invoiced"}
        closed(close, month, world.chance.choice([1, 500]))
        assert closed(close, month, 500) == 0
        if world.chance.random() < 0.4:
            again(books, close, month)
        assert books.faults() == []
        checks = list(check_invoices(books.database))
        assert [check.holds for check in checks] == [True, True], checks
    invoiced = books.rows(
        "SELECT lines.account, currency, original_period, sum(amount) AS amount FROM invoice_lines AS lines"
        " JOIN invoices USING (invoice) WHERE NOT EXISTS (SELECT FROM invoice_events AS v"
        " WHERE v.invoice = invoices.invoice AND v.state = 'Voided') GROUP BY 1, 2, 3"
    )
    rounded = {
        (name, currency, month): amount
        for month in SETTING.months
        for (name, currency), amount in world.amounts(month, rounds=True).items()
    }
    found = {(row["account"], row["currency"], row["original_period"]): Fraction(row["amount"]) for row in invoiced}
    assert nonzero(found) == rounded
    in_focus(books, tmp_path, world, rounded)


def in_focus(books: Books, folder: Path, world: Tree, rounded: Mapping[tuple[str, str, date], Fraction]) -> None:
    """Costs by account, currency and original month, and by invoice; each below the head of the month it is in."""
    by_month: defaultdict[tuple[str, str, date], Fraction] = defaultdict(Fraction)
    by_invoice: defaultdict[str, Fraction] = defaultdict(Fraction)
    for month in SETTING.months:
        for row in focus_1_4.exported(books.database, folder, month).charges:
            name = row["SubAccountId"] or row["BillingAccountId"]
            assert row["BillingAccountId"] == world.head(name, month)
            first = row["ChargePeriodStart"].astimezone(ZoneInfo(world.zones[name])).date().replace(day=1)
            by_month[name, row["BillingCurrency"], first] += Fraction(row["BilledCost"])
            if row["InvoiceId"] is not None:
                by_invoice[row["InvoiceId"]] += Fraction(row["BilledCost"])
    assert nonzero(by_month) == rounded
    issued = books.rows(
        "SELECT invoice, total FROM invoices WHERE NOT EXISTS (SELECT FROM invoice_events AS v"
        " WHERE v.invoice = invoices.invoice AND v.state = 'Voided')"
    )
    assert nonzero(by_invoice) == nonzero({row["invoice"]: Fraction(row["total"]) for row in issued})
