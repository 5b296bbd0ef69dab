"""All that makes a bill at once: tiers of lists and prefixes, plans with fees, limits and included units, and what
comes late.

Method: a quarter of four calendars, two of them with another offset at its end, in which plans, terms and accounts
change, end and come again, also backdated; usage comes up to 40 days late under any version of a price, is taken back
and priced again, and may be negative. The oracle adds up fractions of what the test did. Bills, totals, invoices with
their corrections, FOCUS and `weir usage` must be equal to it, to the last digit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest

from cli.reading import read_only
from jobs.audit.bills.invoices import check_invoices
from jobs.close.run import NOT_INVOICED
from jobs.close.void import void
from jobs.exports.columns import Focus
from jobs.exports.files import destination_of
from jobs.exports.focus import FileFormat, FocusExport, export_focus
from jobs.exports.month import Seller
from jobs.queries.bills import read_month, read_totals
from jobs.queries.usage import UsageQuery, usage_rows
from metering.plan_terms import PLAN_MODEL
from metering.price_models import PricedModel
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.exports.focus_rules import broken
from tests.pipelines.billing import Price
from tests.pipelines.closing import NOON, Books
from tests.pipelines.plan_world import BEGINS, LATER, MONTHS, ZONES, World, books_with_plans
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


def versions(base: int) -> list[Version]:
    """Of one plan: three prices, each with versions that begin in the middle of months."""
    of_tiers: list[Terms] = [GRADUATED, VOLUME, "0.0105"]
    of_packages: list[Terms] = [PACKAGE, PACKAGE, GRADUATED]
    middle = [BEGINS, BEGINS + timedelta(days=15), BEGINS + timedelta(days=50)]
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


VERSIONS = {"basic": versions(100), "pro": versions(200)}
Used = dict[tuple[str, int], Fraction]


class Everything(World):
    """With tiers, negative values, reversals, and accounts and terms that end."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
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
        at, name = self.instant(now), self.chance.choice(list(ZONES))
        if at.astimezone(ZoneInfo(ZONES[name])).date() < MONTHS[0]:
            return
        quantity = Decimal(self.chance.randint(1, 3_000_000_000)).scaleb(-6) * self.chance.choice([1] * 7 + [-1])
        outcome = {"at": at, "name": name, "quantity": quantity, "cause": "stream", **self._priced()}
        self._fold(books, now, **outcome)
        self.outcomes.append(outcome)

    def _priced(self) -> dict[str, Any]:
        plan = self.chance.choice(list(VERSIONS))
        version = self.chance.choice(VERSIONS[plan])
        return {"plan": plan, "version": version, "model": self.chance.choice(version.models)}

    def _fold(self, books: Books, now: datetime, *, version: Version, **of: Any) -> None:
        day = of["at"].astimezone(ZoneInfo(ZONES[of["name"]])).date()
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
        )
        used = self.quantities[of["name"], day.replace(day=1), of["plan"]]
        used[of["model"], version.number] += Fraction(of["quantity"])

    def change(self, books: Books, now: datetime) -> None:
        """As before; or an account is renamed or deleted, or terms of a plan end."""
        drawn = self.chance.random()
        name = self.chance.choice(list(ZONES))
        if drawn < 0.1:
            with books.connection.transaction():
                new = f"{name} {now:%d %B}"
                books.connection.execute("UPDATE catalog.accounts SET name = %s WHERE account = %s", [new, name])
        elif drawn < 0.2 and self.plans[name][-1][1] is not None:
            since = self.instant(now)
            with books.connection.transaction():
                books.connection.execute(
                    "UPDATE catalog.accounts SET deleted_at = %s WHERE account = %s", [since, name]
                )
                books.connection.execute("DELETE FROM catalog.accounts WHERE account = %s", [name])
            self.plans[name] = [*((at, other) for at, other in self.plans[name] if at < since), (since, None)]
        elif drawn < 0.35:
            self._end_terms(books, now)
        else:
            super().change(books, now)
            # Terms that are written again have not ended.
            self.ended = {key: at for key, at in self.ended.items() if self._has_ended(books, *key)}

    def _end_terms(self, books: Books, now: datetime) -> None:
        plan = self.chance.choice(list(self.terms))
        open_since = [since for since in self.terms[plan] if (plan, since) not in self.ended]
        if not open_since:
            return
        since, ends = self.chance.choice(open_since), self.instant(now)
        place = [plan, PLAN_MODEL, since]
        with books.connection.transaction():
            books.connection.execute(
                "UPDATE catalog.prices SET deleted_at = %s WHERE (plan, model, effective_from) = (%s, %s, %s)",
                [ends, *place],
            )
            books.connection.execute(
                "DELETE FROM catalog.prices WHERE (plan, model, effective_from) = (%s, %s, %s)", place
            )
        if ends > since:
            self.ended[plan, since] = ends
        else:
            del self.terms[plan][since]

    @staticmethod
    def _has_ended(books: Books, plan: str, since: datetime) -> bool:
        statement = "SELECT FROM catalog.prices WHERE (plan, model, effective_from) = (%s, %s, %s)"
        return not books.rows(statement, plan, PLAN_MODEL, since)

    def usage(self, name: str, month: date, plan: str, included: Fraction) -> list[Fraction]:
        """What each line of usage costs."""
        used = {key: quantity for key, quantity in self.quantities[name, month, plan].items() if quantity}
        rest = self._not_included(used, included)
        found: list[Fraction] = []
        for ladder in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
            rungs = [VERSIONS[plan][place] for place in ladder]
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
    for found in books_with_plans(database):
        for plan, rungs in VERSIONS.items():
            for rung in rungs:
                is_unit = isinstance(rung.terms, str)
                row = {"price_version": rung.number, "plan": plan, "model": rung.model, "meter": "input_tokens"}
                priced = {
                    "unit_price": rung.terms if is_unit else None,
                    "terms": None if is_unit else PriceTerms.of(rung.terms).text,
                }
                write(database, "price_ladders", {**row, **priced, "currency": "EUR", "effective_from": rung.since})
        yield found


def expected(world: World, month: date, decimals: int | None) -> dict[str, Fraction]:
    """What each account's month comes to."""
    sums = {name: sum(world.month(name, month, decimals).values(), Fraction()) for name in ZONES}
    return {name: amount for name, amount in sums.items() if amount}


def billed(books: Books, month: date) -> dict[str, Fraction]:
    """The same by the lines of bills, which their totals must equal."""
    sums: defaultdict[str, Fraction] = defaultdict(Fraction)
    with read_only(books.database) as reader:
        for line in read_month(reader, month).lines:
            sums[line["account"]] += Fraction(line["amount"])
        of_accounts = read_totals(reader, month, list(ZONES))
    assert {row["account"]: row["amount"] for row in of_accounts if row["amount"]} == {
        name: amount for name, amount in sums.items() if amount
    }
    return {name: amount for name, amount in sums.items() if amount}


def exported(books: Books, folder: Path, month: date) -> list[dict[str, Any]]:
    export = FocusExport(month, Focus.V1_3, FileFormat.PARQUET, Seller("Example Inc.", "Some Cloud"))
    with read_only(books.database) as connection:
        done = export_focus(connection, destination_of(str(folder), {}), export, NOON, lambda _: None)
    rows: list[dict[str, Any]] = pq.read_table(folder / done.file).to_pylist()
    assert broken(rows) == {}
    return rows


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(30))
def test_bills_invoices_with_corrections_and_focus_are_an_independent_sum(
    books: Books, tmp_path: Path, seed: int
) -> None:
    world = Everything(seed)
    hashes: set[tuple[str, int, str]] = set()
    for month in world.quarter(books):
        for each in MONTHS[: MONTHS.index(month) + 1]:
            assert billed(books, each) == expected(world, each, None)
        closed(books, month, world.chance.choice([1, 500]))
        assert closed(books, month, 500) == 0
        if world.chance.random() < 0.4:
            again(books, world, month)
        found = {
            (row["account"], row["sequence"], row["hash"])
            for row in books.rows("SELECT account, sequence, hash FROM invoice_events")
        }
        assert hashes <= found
        hashes = found
        assert books.faults() == []
        assert [check.holds for check in check_invoices(books.database)] == [True, True]
    invoiced = books.rows(
        "SELECT lines.account, original_period, sum(amount) AS amount FROM invoice_lines AS lines"
        " WHERE NOT EXISTS (SELECT FROM invoice_events AS v WHERE v.invoice = lines.invoice AND v.state = 'Voided')"
        " GROUP BY 1, 2 HAVING sum(amount) <> 0"
    )
    rounded = {(name, month): amount for month in MONTHS for name, amount in expected(world, month, 2).items()}
    assert {(row["account"], row["original_period"]): Fraction(row["amount"]) for row in invoiced} == rounded
    in_focus(books, tmp_path, rounded)
    used: defaultdict[str, Fraction] = defaultdict(Fraction)
    for (name, _, _), quantities in world.quantities.items():
        used[name] += sum(quantities.values(), Fraction())
    with read_only(books.database) as reader:
        rows = list(usage_rows(reader, UsageQuery(group_by=())))
    assert sum(Fraction(row["quantity"]) for row in rows) == sum(used.values(), Fraction())


def closed(books: Books, month: date, account_batch: int) -> int:
    """How many invoices a close issues, with those of earlier months that it says are on none."""
    rows = books.close(month, at=LATER, account_batch=account_batch)
    assert {row["outcome"] for row in rows} <= {"issued", NOT_INVOICED}
    earlier = [row for row in rows if row["outcome"] == NOT_INVOICED]
    for row in earlier:
        of_month = books.close(date.fromisoformat(f"{row['period']}-01"), [row["account"]], at=LATER)
        assert of_month[-1]["outcome"] == "issued"
    return len(rows) + (closed(books, month, account_batch) if earlier else 0)


def again(books: Books, world: World, month: date) -> None:
    """The newest invoice is voided and issued again."""
    newest = books.rows("SELECT account, invoice FROM invoices WHERE period = %s ORDER BY number DESC LIMIT 1", month)
    if newest:
        void(books.database, newest[0]["invoice"], made_by="ann", reason="wrong address", at=LATER)
        accounts = [newest[0]["account"]]
        (row,) = books.close(month, accounts, at=LATER, reissues=True, reason="the right address")
        assert row["outcome"] == "issued"


def in_focus(books: Books, folder: Path, rounded: Mapping[tuple[str, date], Fraction]) -> None:
    by_month: defaultdict[tuple[str, date], Fraction] = defaultdict(Fraction)
    by_invoice: defaultdict[str, Fraction] = defaultdict(Fraction)
    for month in MONTHS:
        for row in exported(books, folder, month):
            name = row["BillingAccountId"]
            first = row["ChargePeriodStart"].astimezone(ZoneInfo(ZONES[name])).date().replace(day=1)
            by_month[name, first] += Fraction(row["BilledCost"])
            by_invoice[row["InvoiceId"]] += Fraction(row["BilledCost"])
    assert {key: amount for key, amount in by_month.items() if amount} == rounded
    issued = books.rows(
        "SELECT invoice, total FROM invoices WHERE NOT EXISTS (SELECT FROM invoice_events AS v"
        " WHERE v.invoice = invoices.invoice AND v.state = 'Voided')"
    )
    assert by_invoice == {row["invoice"]: Fraction(row["total"]) for row in issued}
