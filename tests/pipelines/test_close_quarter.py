"""A quarter with closes between stragglers, backdated prices and reversals: invoices plus corrections are the truth.

Method: random histories of usage are folded as billing folds them, and months are closed on the way. The oracle knows
nothing of invoices: it adds up all outcomes of a key in fractions, multiplies once and rounds once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from jobs.audit.bills.invoices import check_invoices
from metering.meters import Meter
from tests.pipelines.billing import Price, usage_row
from tests.pipelines.closing import Books, books_of

MONTHS = [date(2026, 10, 1), date(2026, 11, 1), date(2026, 12, 1), date(2027, 1, 1)]
ACCOUNTS = {"acme": ("EUR", "UTC"), "bolt": ("JPY", "Asia/Tokyo"), "core": ("KWD", "America/Lima")}
DIGITS = {"EUR": 2, "JPY": 0, "KWD": 3}
PRICES = [Price(number, Decimal(text)) for number, text in enumerate(["0.000003141593", "0.0125", "0.777777777777"], 1)]
METERS = (Meter.REQUESTS, Meter.INPUT_TOKENS)
Row = dict[str, Any]


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_of(database)


class History:
    """Outcomes by when they are received, and what they come to: (account, month, model, meter, version) → quantity."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.truth: defaultdict[tuple[Any, ...], Fraction] = defaultdict(Fraction)
        self.prices: dict[int, Decimal] = {price.version: price.unit_price for price in PRICES}
        self.outcomes: list[Row] = []

    def day(self, lsn: int, at: datetime) -> list[Row]:
        """Received on one day: usage of it, stragglers of up to 30 days, other prices, and reversals."""
        rows = [self._outcome(lsn + number, at) for number in range(8)]
        for _ in range(self.chance.randint(0, 2)):
            rows += self._again(lsn + len(rows), at, reprices=self.chance.random() < 0.6)
        return rows

    def _outcome(self, lsn: int, at: datetime) -> Row:
        account = self.chance.choice(list(ACCOUNTS))
        late = timedelta(days=self.chance.choice([0, 0, 0, 1, 8, 30]), minutes=self.chance.randint(0, 1_000))
        first = datetime(2026, 10, 1, 8, tzinfo=UTC)
        return self._row(
            lsn,
            max(at - late, first),
            account=account,
            delay=late,
            price=self.chance.choice(PRICES),
            model=self.chance.choice(["opus", "sonnet"]),
            quantities={Meter.REQUESTS: 1, Meter.INPUT_TOKENS: Decimal(self.chance.randint(1, 10**7)) / 1_000},
        )

    def _again(self, lsn: int, at: datetime, *, reprices: bool) -> list[Row]:
        """What an audit appends: an earlier outcome with the other sign, and perhaps at another price."""
        if not self.outcomes:
            return []
        earlier = self.outcomes.pop(self.chance.randrange(len(self.outcomes)))
        known = {**earlier, "delay": at - earlier["event_time"]}
        rows = [self._row(lsn, **{**known, "sign": -1, "cause": "repriced" if reprices else "reversed"})]
        if reprices:
            rows.append(self._row(lsn + 1, **{**known, "price": self.chance.choice(PRICES), "cause": "repriced"}))
        return rows

    def _row(self, lsn: int, event_time: datetime, **of: Any) -> Row:
        currency, zone = ACCOUNTS[of["account"]]
        sign, price = of.get("sign", 1), of["price"]
        day = event_time.astimezone(ZoneInfo(zone)).date()
        for meter, quantity in of["quantities"].items():
            key = (of["account"], day.replace(day=1), of["model"], meter.value, price.version)
            self.truth[key] += sign * Fraction(quantity)
        if sign > 0:
            self.outcomes.append({"event_time": event_time, **of})
        return usage_row(lsn, event_time, **{**of, "currency": currency, "day": day})

    def amounts(self) -> dict[tuple[Any, ...], Fraction]:
        """Each key's money: its quantity times its price, rounded half to even once."""
        found = {}
        for key, quantity in self.truth.items():
            digits = DIGITS[ACCOUNTS[key[0]][0]]
            found[key] = Fraction(round(quantity * Fraction(self.prices[key[4]]) * 10**digits), 10**digits)
        return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.few_in_ci(2)
def test_invoices_and_corrections_are_an_independent_sum_to_the_last_digit_and_no_hash_changed(
    books: Books, seed: int
) -> None:
    history = History(seed)
    for account, (currency, zone) in ACCOUNTS.items():
        books.open(account, currency, zone)
    known: dict[tuple[str, int], str] = {}
    at = datetime(2026, 10, 1, 9, tzinfo=UTC)
    closed: list[date] = []
    while at < datetime(2027, 2, 10, tzinfo=UTC):
        # The last days bring only what comes late, so that everything is on an invoice in the end.
        if at < datetime(2027, 1, 31, tzinfo=UTC):
            books.fold(history.day(books.lsn, at), frontier=at)
        else:
            books.reach(at)
        month = next((each for each in MONTHS if each not in closed), None)
        if month is not None and at.date() >= (month + timedelta(days=32)).replace(day=3):
            rows = books.close(month)
            assert {row["outcome"] for row in rows} == {"issued"}
            closed.append(month)
            found = {
                (row["account"], row["sequence"]): row["hash"]
                for row in books.rows("SELECT account, sequence, hash FROM invoice_events")
            }
            assert known.items() <= found.items()
            known = found
            assert books.faults() == []
            assert [check.holds for check in check_invoices(books.database)] == [True, True]
        at += timedelta(days=2)
    assert closed == MONTHS
    invoiced = {
        (row["account"], row["original_period"], row["model"], row["meter"], row["price_version"]): row
        for row in books.rows(
            "SELECT account, original_period, model, meter, price_version, sum(amount) AS amount, sum(quantity) AS"
            " quantity, count(*) FILTER (WHERE charge_class IS NOT NULL) AS corrections"
            " FROM invoice_lines GROUP BY 1, 2, 3, 4, 5"
        )
    }
    truth = history.amounts()
    assert {key for key, amount in truth.items() if amount or history.truth[key]} <= set(invoiced) <= set(truth)
    assert {key: Fraction(row["amount"]) for key, row in invoiced.items()} == {key: truth[key] for key in invoiced}
    assert {key: Fraction(row["quantity"]) for key, row in invoiced.items()} == {
        key: history.truth[key] for key in invoiced
    }
    assert sum(row["corrections"] for row in invoiced.values()) > 20
    totals = {
        row["account"]: Fraction(row["total"])
        for row in books.rows("SELECT account, sum(total) AS total FROM invoices GROUP BY 1")
    }
    assert totals == {
        account: sum(amount for key, amount in truth.items() if key[0] == account) for account in ACCOUNTS
    }
