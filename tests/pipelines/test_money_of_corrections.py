"""What is invoiced after a month was closed: corrections, write-offs, credit notes, and invoices that are voided.

Method: the world of `test_money_of_plans`, with much usage at the borders of its accounts' months. Any invoices are
voided, the latest first, more happens, and each month is issued again. The oracle knows what the test did, and the
amounts of earlier invoices: it says in fractions what each invoice must charge for each month, and what of that is
written off or credited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.audit.bills.invoices import check_invoices
from jobs.close.config import CloseConfig
from jobs.close.void import void
from metering.invoices import CORRECTION, WRITE_OFF, Kind
from tests.conftest import fresh_database
from tests.pipelines.closing import DECEMBER, JANUARY, NOVEMBER, OCTOBER, PRICE, Books, books_of
from tests.pipelines.plan_world import LATER, Setting, books_with_plans
from tests.pipelines.test_money_of_plans import SETTINGS, Close, Everything, closed, expected, store_ladders

MINUTE = timedelta(minutes=1)
_NEW = """
    SELECT invoice, account, period, kind, total FROM invoices WHERE NOT invoice = ANY (%s) ORDER BY issuer, number
"""
_LINES = "SELECT original_period, kind, charge_class, amount FROM invoice_lines WHERE invoice = %s"
_CHAIN = "SELECT account, sequence, hash FROM invoice_events"
_NOT_VOIDED = """
    SELECT invoice, period FROM invoices WHERE account = %s AND NOT EXISTS (
        SELECT FROM invoice_events AS voided WHERE voided.invoice = invoices.invoice AND voided.state = 'Voided'
    ) ORDER BY period DESC, number DESC
"""


class AtBorders(Everything):
    """Half of what happens does so at the border of some account's month."""

    def instant(self, latest: datetime) -> datetime:
        """A minute before the border, at it, or in its first minute."""
        zone = ZoneInfo(self.chance.choice(list(self.zones.values())))
        month = latest.astimezone(zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
        border = month.astimezone(UTC) + self.chance.choice([-MINUTE, timedelta(), MINUTE / 2])
        if self.chance.random() < 0.5 or not self.setting.begins <= border <= latest:
            return super().instant(latest)
        return border


@dataclass
class Issued:
    """What the invoices so far charge for each month, and wrote off of it; those that are voided are removed."""

    known: list[str] = field(default_factory=list)
    charged: dict[tuple[str, str, date], Fraction] = field(default_factory=dict)
    written_off: dict[tuple[str, str, date], Fraction] = field(default_factory=dict)
    kinds: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def remove(self, invoice: str) -> None:
        for amounts in (self.charged, self.written_off):
            for key in [key for key in amounts if key[0] == invoice]:
                del amounts[key]

    def add(self, books: Books, must: Mapping[tuple[str, date], Fraction], below: Fraction) -> None:
        """The invoices that are new, against what their months `must` come to in all."""
        for header in books.rows(_NEW, self.known):
            lines = books.rows(_LINES, header["invoice"])
            self.known.append(header["invoice"])
            assert header["total"] == sum(line["amount"] for line in lines)
            is_correction = all(line["charge_class"] == CORRECTION for line in lines)
            is_credit = is_correction and header["total"] < 0
            assert header["kind"] == (Kind.CREDIT_NOTE if is_credit else Kind.INVOICE)
            self.kinds[header["kind"]] += 1
            for month in {line["original_period"] for line in lines}:
                self._add(header, [line for line in lines if line["original_period"] == month], must, below)

    def _add(
        self,
        header: Mapping[str, Any],
        lines: list[dict[str, Any]],
        must: Mapping[tuple[str, date], Fraction],
        below: Fraction,
    ) -> None:
        account, month = header["account"], lines[0]["original_period"]
        due = must.get((account, month), Fraction()) - self.sum(self.charged, account, month)
        given_up = Fraction()
        if month != header["period"]:
            if due < 0:
                given_up = max(-self.sum(self.written_off, account, month), due)
            elif due < below:
                given_up = due
        amounts = [(line["kind"] == WRITE_OFF, Fraction(line["amount"])) for line in lines]
        assert sum(amount for is_write_off, amount in amounts if not is_write_off) == due
        assert -sum(amount for is_write_off, amount in amounts if is_write_off) == given_up
        self.charged[header["invoice"], account, month] = due
        self.written_off[header["invoice"], account, month] = given_up
        self.kinds[WRITE_OFF] += given_up > 0
        self.kinds["written off and credited"] += given_up < 0

    @staticmethod
    def sum(amounts: Mapping[tuple[str, str, date], Fraction], account: str, month: date) -> Fraction:
        return sum((amount for key, amount in amounts.items() if key[1:] == (account, month)), Fraction())


def due(world: AtBorders, until: date) -> dict[tuple[str, date], Fraction]:
    """What each month of an account comes to now, its lines rounded."""
    months = [month for month in world.setting.months if month <= until]
    return {(name, month): amount for month in months for name, amount in expected(world, month, rounds=True).items()}


def voided(books: Books, issued: Issued, account: str, count: int) -> list[date]:
    """The months of the account's last invoices, which are voided."""
    months = []
    for row in books.rows(_NOT_VOIDED, account)[:count]:
        void(books.database, row["invoice"], made_by="ann", reason="wrong address", at=LATER)
        issued.remove(row["invoice"])
        months.append(row["period"])
    return sorted(months)


def settled(books: Books, world: AtBorders, issued: Issued, until: date, below: Fraction) -> None:
    """Each new invoice is right, and all invoices of each month come to what it must be."""
    must = due(world, until)
    issued.add(books, must, below)
    for name in world.zones:
        for month in world.setting.months:
            if month <= until:
                assert issued.sum(issued.charged, name, month) == must.get((name, month), Fraction())
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def corrected(books: Books, world: AtBorders, below: Decimal) -> Issued:
    """A quarter with its closes; what was issued in it."""
    close: Close = partial(
        books.close,
        at=LATER,
        config=CloseConfig(rounding=world.setting.rounding, write_off_below={world.setting.currency: below}),
    )
    issued = Issued()
    chain: set[tuple[str, int, str]] = set()
    for month in world.quarter(books):
        closed(close, month, world.chance.choice([1, 500]))
        settled(books, world, issued, month, Fraction(below))
        if world.chance.random() < 0.6:
            name = world.chance.choice(list(world.zones))
            months = voided(books, issued, name, world.chance.randint(1, 3))
            now = datetime(month.year, month.month, 28, tzinfo=UTC)
            for _ in range(world.chance.randint(0, 3)):
                world.use(books, now)
            for again in months:
                rows = close(again, [name], reissues=True, reason="the right address")
                assert "refused" not in {row["outcome"] for row in rows}, rows
                issued.add(books, due(world, again), Fraction(below))
            closed(close, month, 500)
            # What came for the others meanwhile is on their next invoices.
            for other in world.zones:
                close(month, [other])
        found = {(row["account"], row["sequence"], row["hash"]) for row in books.rows(_CHAIN)}
        assert chain <= found
        chain = found
    return issued


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    seed=st.integers(0, 2**32),
    setting=st.sampled_from(list(SETTINGS.values())),
    below=st.sampled_from(["0.001", "0.02", "3", "40", "100000"]),
)
def test_each_invoice_charges_writes_off_and_credits_what_an_independent_ledger_says(
    postgres_url: str, seed: int, setting: Setting, below: str
) -> None:
    world = AtBorders(seed, setting)
    with fresh_database(postgres_url) as database:
        for books in books_with_plans(database):
            store_ladders(books, world)
            corrected(books, world, Decimal(below))


KNOWN = ((OCTOBER, 1_000), (NOVEMBER, 600), (DECEMBER, -600), (JANUARY, -1_000))
"""How much usage of October comes, or is taken back, before each month is closed."""


def test_a_known_quarter_has_what_is_written_off_what_of_it_is_credited_and_a_credit_note(postgres_url: str) -> None:
    """By the same ledger: random quarters may have none of them, and would then prove nothing of them."""
    issued, must = Issued(), defaultdict[tuple[str, date], Fraction](Fraction)
    config = CloseConfig(write_off_below={"EUR": Decimal(1)})
    with fresh_database(postgres_url) as database:
        for books in books_of(database):
            books.open()
            for month, quantity in KNOWN:
                books.use(quantity, cause="stream" if quantity > 0 else "reversed")
                must["acme", OCTOBER] += quantity * Fraction(PRICE.unit_price)
                books.end(month)
                books.close(month, config=config)
                issued.add(books, must, Fraction(1))
            assert books.faults() == []
            assert [check.holds for check in check_invoices(books.database)] == [True, True]
    expected_kinds = {Kind.INVOICE: 3, Kind.CREDIT_NOTE: 1, WRITE_OFF: 1, "written off and credited": 1}
    assert {kind: count for kind, count in issued.kinds.items() if count} == expected_kinds
    assert must["acme", OCTOBER] == issued.sum(issued.charged, "acme", OCTOBER) == 0
