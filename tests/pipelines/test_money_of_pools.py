"""Accounts of a tree that pool their months' totals, up to invoices with corrections, keys, limits and FOCUS.

Method: the world of `test_money_of_plans`, in one time zone, with pools that begin, grow and end between months. Usage
comes late and for closed months, under any version of a price, is taken back and may be negative. The oracle adds up
fractions of what the test did, and shares each tier as decision 0168 says it. It reads neither the statements nor
`metering.pools`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from jobs.audit.bills.invoices import check_invoices
from jobs.close import store
from jobs.close.run import NOT_INVOICED
from jobs.queries.bills import read_month, read_totals
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.api_reader import API_READER
from tests.pipelines.closing import Books
from tests.pipelines.plan_world import Setting, books_with_plans
from tests.pipelines.test_money_of_plans import (
    Close,
    Everything,
    again,
    billed,
    closing,
    expected,
    in_focus,
    on_invoices,
    store_ladders,
)
from tests.rules.test_pools import MILLIONTH, PICO, oracle_shares
from tests.rules.test_price_tiers import oracle

PARENTS = {"a": None, "b": "a", "c": "a", "d": "b", "e": "b", "f": None}
SETTING = Setting(zones=tuple(dict.fromkeys(PARENTS, "Europe/Berlin").items()))
Part = tuple[Fraction, Fraction | None, Fraction]
"""Of a tier: quantity, unit price, amount."""


class Pools(Everything):
    """`pooled`: of an account from which month on, before which (None: it goes on), and below whom it pools."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SETTING)
        self.pooled: dict[str, list[tuple[date, date | None, str]]] = {name: [] for name in PARENTS}
        self.is_begun = False
        self.closed: date | None = None

    def document(self) -> dict[str, Any]:
        """Plans whose accounts pool include no units."""
        found = {name: value for name, value in super().document().items() if name != "included"}
        return found or {"flat_fee": "1.005"}

    def plan(self, books: Books, name: str, plan: str, since: datetime) -> None:
        """An account is below its parent from the beginning."""
        if not self.plans[name]:
            with books.connection.transaction():
                books.connection.execute(
                    "INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from, parent)"
                    " VALUES (%(name)s, %(name)s, %(plan)s, 'EUR', %(zone)s, %(since)s, %(parent)s)",
                    {"name": name, "plan": plan, "zone": self.zones[name], "since": since, "parent": PARENTS[name]},
                )
        super().plan(books, name, plan, since)

    def change(self, books: Books, now: datetime) -> None:
        """Terms of plans, the plan of who pools with nobody, and pools from a month on that is not closed."""
        drawn = self.chance.random()
        if drawn < 0.3:
            self.cost(books, self.chance.choice(self.plan_names), self.instant(now))
        elif drawn < 0.5:
            self.plan(books, "f", self.chance.choice(self.plan_names), self.instant(now))
        elif drawn < 0.8:
            self.pool(books)
        else:
            self.leave(books)

    def pool(self, books: Books) -> None:
        """Some that pool with nobody do so from a month on, below one that is above all of them."""
        months = [month for month in self.setting.months if self.closed is None or month > self.closed]
        first = self.chance.choice(months)
        end = self.chance.choice([None, None, *(month for month in self.setting.months if month > first)])
        parent = self.chance.choice(["a", "b"])
        names = ["a", "b", "c", "d", "e"] if parent == "a" else ["b", "d", "e"]
        free = [
            name for name in names if all(until is not None and until <= first for _, until, _ in self.pooled[name])
        ]
        for name in self.chance.sample(free, self.chance.randint(0, len(free))):
            write_pool(books, name, first, end, parent)
            self.pooled[name].append((first, end, parent))

    def leave(self, books: Books) -> None:
        """One leaves its pool with a month."""
        name = self.chance.choice(list(PARENTS))
        if not self.pooled[name]:
            return
        first, end, parent = self.pooled[name][-1]
        months = [
            month for month in self.setting.months if month >= first and (self.closed is None or month > self.closed)
        ]
        if months and (end is None or end > months[0]):
            left = self.chance.choice(months)
            with books.connection.transaction():
                books.connection.execute(
                    "UPDATE catalog.pools SET end_month = %s WHERE (account, first_month) = (%s, %s)",
                    [left, name, first],
                )
                # One that never was can be declared again.
                books.connection.execute("DELETE FROM catalog.pools WHERE end_month = first_month")
            self.pooled[name][-1:] = [(first, left, parent)] if left > first else []

    def group(self, name: str, month: date) -> list[str]:
        """Who pools with an account in a month, by name; itself alone where it does not."""
        parent = self.head_of(name, month)
        return [name] if parent is None else [other for other in PARENTS if self.head_of(other, month) == parent]

    def head_of(self, name: str, month: date) -> str | None:
        return next(
            (parent for first, end, parent in self.pooled[name] if first <= month and (end is None or end > month)),
            None,
        )

    def usage(self, name: str, month: date, plan: str, included: Fraction) -> list[Fraction]:
        """What each line of usage costs."""
        assert not included
        members = self.group(name, month)
        used = {
            member: {key: quantity for key, quantity in self.quantities[member, month, plan].items() if quantity}
            for member in members
        }
        found: list[Fraction] = []
        for ladder in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
            rungs = [self.versions[plan][place] for place in ladder]
            sums = {
                rung.number: {
                    member: quantity
                    for member in members
                    if (
                        quantity := sum(
                            (used[member][key] for key in used[member] if key[1] == rung.number), Fraction()
                        )
                    )
                }
                for rung in rungs
            }
            there = [rung for rung in rungs if sums[rung.number]]
            total = sum((sum(of.values(), Fraction()) for of in sums.values()), Fraction())
            start = Fraction()
            for rung in there:
                above = {member: each for member, each in sums[rung.number].items() if each > 0}
                below = {member: each for member, each in sums[rung.number].items() if each < 0}
                for part in (above, below):
                    end = start + sum(part.values(), Fraction())
                    if name in part and not isinstance(rung.terms, str):
                        is_last = rung is there[-1] and (part is above or not above)
                        tiers = parts_of(dict(rung.terms), start, end, total, is_last=is_last)
                        found += share_of(name, part, tiers)
                    start = end
                if isinstance(rung.terms, str):
                    mine = used[name]
                    found += [mine[key] * Fraction(rung.terms) for key in mine if key[1] == rung.number]
        return found


def write_pool(books: Books, name: str, first: date, end: date | None, parent: str) -> None:
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO catalog.pools (account, first_month, end_month, parent) VALUES (%s, %s, %s, %s)",
            [name, first, end, parent],
        )


def parts_of(document: dict[str, Any], start: Fraction, end: Fraction, total: Fraction, *, is_last: bool) -> list[Part]:
    """Each tier that prices any of a part."""
    whole = oracle(document, start, end, total, is_last)
    if document["kind"] == "package":
        return [(end - start, None, whole)]
    bounds = [Fraction(tier["up_to"]) for tier in document["tiers"] if "up_to" in tier]
    units = [Fraction(tier["unit_price"]) for tier in document["tiers"]]
    if document["kind"] == "volume":
        return [(end - start, units[sum(bound < total for bound in bounds)], whole)]
    low, high = min(start, end, Fraction()), max(start, end, bounds[-1])
    found: list[Part] = []
    for lowest, highest, unit in zip([low, *bounds], [*bounds, high], units, strict=True):
        first, last = (min(max(at, lowest), highest) for at in (start, end))
        if first != last:
            found.append((last - first, unit, oracle(document, first, last, total, is_last=False)))
    return found


def share_of(name: str, members: dict[str, Fraction], tiers: list[Part]) -> list[Fraction]:
    """What a member pays of each tier that it has units of."""
    names, place = sorted(members), sorted(members).index(name)
    left = [abs(members[each]) for each in names]
    found = []
    for quantity, unit, amount in tiers:
        sign = 1 if quantity > 0 else -1
        is_rest = (quantity, unit, amount) == tiers[-1]
        shares = list(left) if is_rest else oracle_shares(abs(quantity), left, MILLIONTH)
        left = [before - share for before, share in zip(left, shares, strict=True)]
        flat = amount - quantity * (unit or 0)
        flats = oracle_shares(abs(flat), shares, PICO)
        if shares[place]:
            found.append(sign * shares[place] * (unit or 0) + (flats[place] if flat > 0 else -flats[place]))
    return found


def of_key(books: Books, month: date, account: str) -> None:
    """Somebody who may see one member alone has its lines and total, and sees nothing else."""
    bills = []
    for shown, accounts in (("*", [account]), (json.dumps([account]), None)):
        with psycopg.connect(in_schema(books.database), row_factory=dict_row) as session:
            session.execute(f"SET ROLE {API_READER}")
            session.execute("SELECT set_config('weir.accounts', %s, true)", [shown])
            bills.append((read_month(session, month, accounts).lines, read_totals(session, month, [account])))
            others = session.execute("SELECT account FROM pool_parts(%s, NULL) WHERE account <> %s", [month, account])
            assert shown == "*" or others.fetchall() == []
    assert bills[0] == bills[1]


def closed(close: Close, month: date, account_batch: int) -> int:
    """How many invoices a close issues, with those of earlier months that it says are on none: pools together."""
    rows = close(month, account_batch=account_batch)
    assert {row["outcome"] for row in rows} <= {"issued", NOT_INVOICED}
    earlier = [row for row in rows if row["outcome"] == NOT_INVOICED]
    for row in earlier:
        named = [word for word in row["reason"].split("`")[1].split() if word in PARENTS]
        assert row["account"] in named
        of_month = close(date.fromisoformat(f"{row['period']}-01"), named)
        assert {each["outcome"] for each in of_month} <= {"issued", "closed already", NOT_INVOICED}
    return len(rows) + (closed(close, month, account_batch) if earlier else 0)


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_with_plans(database)


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(30))
def test_members_of_pools_are_billed_and_invoiced_by_an_independent_sum(
    books: Books, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Pools(seed)
    store_ladders(books, world)
    close = closing(books, SETTING)
    pools = 0
    for month in world.quarter(books):
        for each in SETTING.months[: SETTING.months.index(month) + 1]:
            assert billed(books, each, list(world.zones)) == expected(world, each)
        of_key(books, month, world.chance.choice(list(PARENTS)))
        pools += any(len(world.group(name, month)) > 1 for name in PARENTS)
        killed(books, close, month, world, monkeypatch)
        closed(close, month, world.chance.choice([1, 3, 500]))
        world.closed = month
        assert closed(close, month, 500) == 0
        if world.chance.random() < 0.4:
            again(books, close, month)
        assert books.faults() == []
        checks = list(check_invoices(books.database))
        assert [check.holds for check in checks] == [True, True], checks
    rounded = on_invoices(books, world, SETTING.months)
    in_focus(books, tmp_path, world, rounded)
    assert seed or pools


class Killed(BaseException):
    """As a signal would end it."""


def killed(books: Books, close: Close, month: date, world: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that ends before one of its writes has closed all of a pool or nothing of it."""
    writes, at = 0, world.chance.randint(1, 8)
    really = store._copy

    def dying(*arguments: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == at:
            raise Killed
        really(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_copy", dying)
        with suppress(Killed):
            close(month, account_batch=world.chance.choice([1, 3]))
    done = {row["account"] for row in books.rows("SELECT account FROM invoices WHERE period = %s", month)}
    for name in PARENTS:
        used = {other for other in world.group(name, month) if expected_usage(world, other, month)}
        assert not used & done or used <= done


def expected_usage(world: Pools, name: str, month: date) -> bool:
    return any(quantity for plan in world.plan_names for quantity in world.quantities[name, month, plan].values())
