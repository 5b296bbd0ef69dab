"""All that makes a bill at once: tiers of lists and prefixes, plans with fees, limits and included units, and what
comes late.

Method: months of four calendars, in which plans, terms and accounts change (also twice on a day), end and come again,
also backdated; some months end as clocks change, begin with two midnights or have a leap day, and some currencies have
no decimals or three. Usage comes up to 40 days late under any version of a price, is taken back
and priced again, and may be negative. The oracle adds up fractions of what the test did. Bills, totals, invoices with
their corrections, FOCUS and `weir usage` must be equal to it, to the last digit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from cli.reading import read_only
from jobs.audit.bills.invoices import check_invoices
from jobs.close.config import CloseConfig
from jobs.close.run import NOT_INVOICED
from jobs.close.void import void
from jobs.queries.bills import read_month, read_totals
from jobs.queries.usage import UsageQuery, usage_rows
from metering.invoices import Rounding
from metering.plan_terms import PLAN_MODEL
from metering.price_models import PricedModel
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.exports import focus_1_4
from tests.pipelines.billing import Price
from tests.pipelines.closing import Books
from tests.pipelines.plan_world import LATER, USUAL, Setting, World, books_with_plans
from tests.rules.test_price_tiers import oracle

WITHOUT: dict[str, Any] = {"input_tokens_unit_price": None, "input_tokens_amount": None}
GRADUATED = {
    "kind": "graduated",
    "tiers": [
        {"up_to": "800.5", "unit_price": "0.013", "flat_price": "0.25"},
        {"up_to": "4000", "unit_price": "0.011", "flat_price": "0"},
        {"unit_price": "0.007000000001", "flat_price": "1.005"},
    ],
}
VOLUME = {
    "kind": "volume",
    "tiers": [
        {"up_to": "2500", "unit_price": "0.0123", "flat_price": "0"},
        {"unit_price": "0.0099", "flat_price": "2.345"},
    ],
}
PACKAGE = {"kind": "package", "package_size": "333.25", "package_price": "1.115"}


Terms = Mapping[str, Any] | str


class Version(NamedTuple):
    """A version of a price: what it is for, since when, and its terms, or a text: its unit price."""

    number: int
    model: str
    since: datetime
    terms: Terms
    models: tuple[str, ...]


LEAP = Setting(
    # Berlin's clocks change on the last day of March, Beirut's at its midnight, and February has 29 days.
    datetime(2024, 1, 1, tzinfo=UTC),
    tuple(date(2024, month, 1) for month in (1, 2, 3, 4)),
    (("a", "UTC"), ("b", "Asia/Beirut"), ("c", "Australia/Lord_Howe"), ("d", "Europe/Berlin")),
    "JPY",
    0,
    Rounding.HALF_UP,
)
TWO_MIDNIGHTS = Setting(
    # Havana has 0:00 twice on 1 November.
    zones=(("a", "America/Havana"), ("b", "Pacific/Kiritimati"), ("c", "Pacific/Pago_Pago"), ("d", "Africa/Cairo")),
    currency="BHD",
    decimals=3,
)
SETTINGS = {"": USUAL, "leap year, JPY half-up": LEAP, "two midnights, BHD": TWO_MIDNIGHTS}


def versions(base: int, begins: datetime) -> list[Version]:
    """Of one plan: three prices, each with versions that begin in the middle of months."""
    of_tiers: list[Terms] = [GRADUATED, VOLUME, "0.0105"]
    of_packages: list[Terms] = [PACKAGE, PACKAGE, GRADUATED]
    middle = [begins, begins + timedelta(days=15), begins + timedelta(days=50)]
    listed = PricedModel.group(["m1", "m2"]).text
    of_list = [
        Version(base + number, listed, since, terms, ("m1", "m2"))
        for number, (since, terms) in enumerate(zip(middle, of_tiers, strict=True))
    ]
    of_prefix = [
        Version(base + 3 + number, "n*", since, terms, ("n1", "n2", "n3"))
        for number, (since, terms) in enumerate(zip(middle, of_packages, strict=True))
    ]
    of_one = [
        Version(base + 6 + number, "k", since, price, ("k",))
        for number, (since, price) in enumerate(zip(middle, ["0.0301", "0.000000000007", "0.5"], strict=True))
    ]
    return [*of_list, *of_prefix, *of_one]


Used = dict[tuple[str, int], Fraction]


class Everything(World):
    """With tiers, negative values, reversals, and accounts and terms that end."""

    def __init__(self, seed: int, setting: Setting) -> None:
        super().__init__(seed, setting)
        self.versions = {"basic": versions(100, setting.begins), "pro": versions(200, setting.begins)}
        self.quantities: defaultdict[tuple[str, date, str], Used] = defaultdict(lambda: defaultdict(Fraction))
        self.outcomes: list[dict[str, Any]] = []

    def use(self, books: Books, now: datetime) -> None:
        """Usage of now or of up to 40 days ago; or what was used before is taken back, and perhaps priced again."""
        if self.outcomes and self.chance.random() < 0.2:
            earlier = self.outcomes.pop(self.chance.randrange(len(self.outcomes)))
            self._fold(books, now, **{**earlier, "quantity": -earlier["quantity"], "cause": "reversed"})
            if self.chance.random() < 0.6:
                self._fold(books, now, **{**earlier, **self._priced(), "cause": "repriced"})
            return
        at, name = self.instant(now), self.chance.choice(list(self.zones))
        if at.astimezone(ZoneInfo(self.zones[name])).date() < self.setting.months[0]:
            return
        quantity = Decimal(self.chance.randint(1, 3_000_000_000)).scaleb(-6) * self.chance.choice([1] * 7 + [-1])
        outcome = {"at": at, "name": name, "quantity": quantity, "cause": "stream", **self._priced()}
        self._fold(books, now, **outcome)
        self.outcomes.append(outcome)

    def _priced(self) -> dict[str, Any]:
        plan = self.chance.choice(list(self.versions))
        version = self.chance.choice(self.versions[plan])
        return {"plan": plan, "version": version, "model": self.chance.choice(version.models)}

    def _fold(self, books: Books, now: datetime, *, version: Version, **of: Any) -> None:
        day = of["at"].astimezone(ZoneInfo(self.zones[of["name"]])).date()
        is_unit = isinstance(version.terms, str)
        unit_price = Decimal(version.terms) if isinstance(version.terms, str) else Decimal()
        books.use(
            of["quantity"],
            at=of["at"],
            price=Price(version.number, unit_price),
            account=of["name"],
            day=day,
            delay=now - of["at"],
            model=of["model"],
            **{} if is_unit else WITHOUT,
            cause=of["cause"],
            currency=self.terms_of(of["plan"])[1],
        )
        used = self.quantities[of["name"], day.replace(day=1), of["plan"]]
        used[of["model"], version.number] += Fraction(of["quantity"])

    def change(self, books: Books, now: datetime) -> None:
        """As before; or an account is renamed or deleted, or terms of a plan end."""
        drawn = self.chance.random()
        name = self.chance.choice(list(self.zones))
        if drawn < 0.1:
            with books.connection.transaction():
                new = f"{name} {now:%d %B}"
                books.connection.execute("UPDATE catalog.accounts SET name = %s WHERE account = %s", [new, name])
        elif drawn < 0.2 and self.plans[name][-1][1] is not None and not self.is_parent(name):
            since = self.instant(now)
            with books.connection.transaction():
                books.connection.execute(
                    "UPDATE catalog.accounts SET deleted_at = %s WHERE account = %s", [since, name]
                )
                books.connection.execute("DELETE FROM catalog.accounts WHERE account = %s", [name])
            self.plans[name] = [*((at, other) for at, other in self.plans[name] if at < since), (since, None)]
        elif drawn < 0.35:
            self._end_terms(books, now)
        elif drawn < 0.5:
            # Of two plans of a day the first with terms has it.
            since = self.instant(now).replace(hour=6)
            for number, plan in enumerate(self.chance.choices(list(self.versions), k=3)):
                self.plan(books, name, plan, since + timedelta(hours=number))
        else:
            super().change(books, now)
            # Terms that are written again have not ended.
            self.ended = {key: at for key, at in self.ended.items() if self._has_ended(books, *key)}

    def is_parent(self, name: str) -> bool:  # noqa: ARG002  # worlds with trees of accounts
        """Whether other accounts are below it now."""
        return False

    def _end_terms(self, books: Books, now: datetime) -> None:
        plan = self.chance.choice(list(self.terms))
        open_since = [since for since in self.terms[plan] if (plan, since) not in self.ended]
        if not open_since:
            return
        since, ends = self.chance.choice(open_since), self.instant(now)
        place = [*self.terms_of(plan), PLAN_MODEL, since]
        with books.connection.transaction():
            books.connection.execute(
                "UPDATE catalog.prices SET deleted_at = %s"
                " WHERE (plan, currency, model, effective_from) = (%s, %s, %s, %s)",
                [ends, *place],
            )
            books.connection.execute(
                "DELETE FROM catalog.prices WHERE (plan, currency, model, effective_from) = (%s, %s, %s, %s)", place
            )
        if ends > since:
            self.ended[plan, since] = ends
        else:
            del self.terms[plan][since]

    def _has_ended(self, books: Books, plan: str, since: datetime) -> bool:
        statement = "SELECT FROM catalog.prices WHERE (plan, currency, model, effective_from) = (%s, %s, %s, %s)"
        return not books.rows(statement, *self.terms_of(plan), PLAN_MODEL, since)

    def usage(self, name: str, month: date, plan: str, included: Fraction) -> list[Fraction]:
        """What each line of usage costs."""
        used = {key: quantity for key, quantity in self.quantities[name, month, plan].items() if quantity}
        rest = self._not_included(used, included)
        found: list[Fraction] = []
        for ladder in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
            rungs = [self.versions[plan][place] for place in ladder]
            parts = {
                rung.number: sum((rest[key] for key in rest if key[1] == rung.number), Fraction()) for rung in rungs
            }
            left = [rung for rung in rungs if parts[rung.number]]
            total, start = sum(parts.values(), Fraction()), Fraction()
            for rung in left:
                end = start + parts[rung.number]
                if not isinstance(rung.terms, str):
                    found += _lines(dict(rung.terms), start, end, total, is_last=rung is left[-1])
                start = end
            for rung in rungs:
                if isinstance(rung.terms, str):
                    found += [rest[key] * Fraction(rung.terms) for key in rest if key[1] == rung.number]
        return found

    @staticmethod
    def _not_included(used: Used, included: Fraction) -> Used:
        above = {key: quantity for key, quantity in used.items() if quantity > 0}
        total = sum(above.values(), Fraction())
        steps = int(max(min(included, sum(used.values(), Fraction())), Fraction()) * 10**6)
        whole = {key: steps * quantity // total for key, quantity in above.items()}
        rests = {key: steps * quantity / total - whole[key] for key, quantity in above.items()}
        for key in sorted(rests, key=lambda key: (-rests[key], key))[: steps - sum(whole.values())]:
            whole[key] += 1
        return {key: quantity - Fraction(whole.get(key, 0), 10**6) for key, quantity in used.items()}


def _lines(
    document: dict[str, Any], start: Fraction, end: Fraction, total: Fraction, *, is_last: bool
) -> list[Fraction]:
    """The amount of each tier that prices any of a part."""
    if document["kind"] != "graduated":
        return [oracle(document, start, end, total, is_last)]
    bounds = [Fraction(tier["up_to"]) for tier in document["tiers"] if "up_to" in tier]
    low = min(start, end, Fraction())
    high = max(start, end, bounds[-1])
    tiers = zip([low, *bounds], [*bounds, high], strict=True)
    clipped = [(min(max(start, lowest), highest), min(max(end, lowest), highest)) for lowest, highest in tiers]
    return [oracle(document, first, last, total, is_last=False) for first, last in clipped if first != last]


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_with_plans(database)


def store_ladders(books: Books, world: Everything) -> None:
    for plan, rungs in world.versions.items():
        name, currency = world.terms_of(plan)
        for rung in rungs:
            is_unit = isinstance(rung.terms, str)
            row = {"price_version": rung.number, "plan": name, "model": rung.model, "meter": "input_tokens"}
            priced = {
                "unit_price": rung.terms if is_unit else None,
                "terms": None if is_unit else PriceTerms.of(rung.terms).text,
            }
            of_money = {"currency": currency, "effective_from": rung.since}
            write(books.database, "price_ladders", {**row, **priced, **of_money})


def expected(world: World, month: date, *, rounds: bool = False) -> dict[str, Fraction]:
    """What each account's month comes to."""
    sums = {name: sum(world.month(name, month, rounds=rounds).values(), Fraction()) for name in world.zones}
    return {name: amount for name, amount in sums.items() if amount}


def billed(books: Books, month: date, accounts: list[str]) -> dict[str, Fraction]:
    """The same by the lines of bills, which their totals must equal."""
    sums: defaultdict[str, Fraction] = defaultdict(Fraction)
    with read_only(books.database) as reader:
        for line in read_month(reader, month).lines:
            sums[line["account"]] += Fraction(line["amount"])
        of_accounts = read_totals(reader, month, accounts)
    assert {row["account"]: row["amount"] for row in of_accounts if row["amount"]} == {
        name: amount for name, amount in sums.items() if amount
    }
    return {name: amount for name, amount in sums.items() if amount}


def on_invoices(books: Books, world: World, months: Sequence[date]) -> dict[tuple[str, date], Fraction]:
    """What is on invoices that are not voided, by account and month, which must equal what the months come to."""
    invoiced = books.rows(
        "SELECT lines.account, original_period, sum(amount) AS amount FROM invoice_lines AS lines"
        " WHERE NOT EXISTS (SELECT FROM invoice_events AS v WHERE v.invoice = lines.invoice AND v.state = 'Voided')"
        " GROUP BY 1, 2 HAVING sum(amount) <> 0"
    )
    rounded = {
        (name, month): amount for month in months for name, amount in expected(world, month, rounds=True).items()
    }
    assert {(row["account"], row["original_period"]): Fraction(row["amount"]) for row in invoiced} == rounded
    return rounded


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_bills_invoices_with_corrections_and_focus_are_an_independent_sum(
    books: Books, tmp_path: Path, seed: int, setting: Setting
) -> None:
    world = Everything(seed, setting)
    store_ladders(books, world)
    close = closing(books, setting)
    hashes: set[tuple[str, int, str]] = set()
    for month in world.quarter(books):
        for each in setting.months[: setting.months.index(month) + 1]:
            assert billed(books, each, list(world.zones)) == expected(world, each)
        closed(close, month, world.chance.choice([1, 500]))
        assert closed(close, month, 500) == 0
        if world.chance.random() < 0.4:
            again(books, close, month)
        found = {
            (row["account"], row["sequence"], row["hash"])
            for row in books.rows("SELECT account, sequence, hash FROM invoice_events")
        }
        assert hashes <= found
        hashes = found
        assert books.faults() == []
        assert [check.holds for check in check_invoices(books.database)] == [True, True]
    rounded = on_invoices(books, world, setting.months)
    in_focus(books, tmp_path, world, rounded)
    used: defaultdict[str, Fraction] = defaultdict(Fraction)
    for (name, _, _), quantities in world.quantities.items():
        used[name] += sum(quantities.values(), Fraction())
    with read_only(books.database) as reader:
        rows = list(usage_rows(reader, UsageQuery(group_by=())))
    assert sum(Fraction(row["quantity"]) for row in rows) == sum(used.values(), Fraction())


Close = Callable[..., list[Mapping[str, Any]]]


def closing(books: Books, setting: Setting) -> Close:
    """`weir close` as the setting is configured."""
    return partial(books.close, at=LATER, config=CloseConfig(rounding=setting.rounding))


def closed(close: Close, month: date, account_batch: int) -> int:
    """How many invoices a close issues, with those of earlier months that it says are on none."""
    rows = close(month, account_batch=account_batch)
    assert {row["outcome"] for row in rows} <= {"issued", NOT_INVOICED}
    earlier = [row for row in rows if row["outcome"] == NOT_INVOICED]
    for row in earlier:
        of_month = close(date.fromisoformat(f"{row['period']}-01"), [row["account"]])
        assert of_month[-1]["outcome"] == "issued"
    return len(rows) + (closed(close, month, account_batch) if earlier else 0)


def again(books: Books, close: Close, month: date) -> None:
    """The newest invoice is voided and issued again."""
    newest = books.rows("SELECT account, invoice FROM invoices WHERE period = %s ORDER BY number DESC LIMIT 1", month)
    if newest:
        void(books.database, newest[0]["invoice"], made_by="ann", reason="wrong address", at=LATER)
        accounts = [newest[0]["account"]]
        (row,) = close(month, accounts, reissues=True, reason="the right address")
        assert row["outcome"] == "issued"


def in_focus(books: Books, folder: Path, world: World, rounded: Mapping[tuple[str, date], Fraction]) -> None:
    by_month: defaultdict[tuple[str, date], Fraction] = defaultdict(Fraction)
    by_invoice: defaultdict[str, Fraction] = defaultdict(Fraction)
    for month in world.setting.months:
        for row in focus_1_4.exported(books.database, folder, month).charges:
            name = row["SubAccountId"] or row["BillingAccountId"]
            first = row["ChargePeriodStart"].astimezone(ZoneInfo(world.zones[name])).date().replace(day=1)
            by_month[name, first] += Fraction(row["BilledCost"])
            if row["InvoiceId"] is not None:
                by_invoice[row["InvoiceId"]] += Fraction(row["BilledCost"])
    assert {key: amount for key, amount in by_month.items() if amount} == rounded
    issued = books.rows(
        "SELECT invoice, total FROM invoices WHERE NOT EXISTS (SELECT FROM invoice_events AS v"
        " WHERE v.invoice = invoices.invoice AND v.state = 'Voided')"
    )
    assert by_invoice == {row["invoice"]: Fraction(row["total"]) for row in issued}
