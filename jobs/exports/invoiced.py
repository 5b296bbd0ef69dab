"""Invoices in FOCUS: the rows of a line have its invoice, and rows of their own make their sum the line's amount.

Usage has all its decimals, and an invoice's line is rounded once. What the line lacks or has beyond the exact amount is
one row. Usage that came after the invoice is on its day, too, and is billed by a correction on a later invoice: a
second row takes it out of this one. So BilledCost adds up to the invoice (FOCUS, BilledCost-C-007-M).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from jobs.queries.bills import TIER_INCLUDED
from jobs.queries.reading import Database, select
from metering.digits import EXACT
from metering.invoices import USAGE

NOTHING = Decimal(0)
_ISSUED = """
    FROM invoices JOIN invoice_events AS issued ON issued.invoice = invoices.invoice AND issued.state = 'Issued'
    {}
    WHERE period = %(month)s AND (%(accounts)s::text[] IS NULL OR invoices.account = ANY (%(accounts)s))
      AND NOT EXISTS (
          SELECT FROM invoice_events AS v WHERE v.invoice = invoices.invoice AND v.state = 'Voided'
      )
"""
_INVOICES = f"SELECT invoices.account, currency, invoices.invoice, issuer {_ISSUED.format('')}"
# Once a month has an invoice, voided or not, what comes in a currency of which it has none is a correction.
_CLOSED = """
    SELECT invoices.account, array_agg(currency) AS currencies
    FROM invoices JOIN invoice_events AS issued ON issued.invoice = invoices.invoice AND issued.state = 'Issued'
    WHERE period = %(month)s AND (%(accounts)s::text[] IS NULL OR invoices.account = ANY (%(accounts)s))
    GROUP BY invoices.account
"""
_OF_LINES = _ISSUED.format("JOIN invoice_lines AS lines ON lines.invoice = invoices.invoice")
_OWN = f"""
    SELECT lines.account, model, meter, currency, price_version, tier, line, amount, coalesce(exact_amount, 0) AS exact
    {_OF_LINES} AND charge_class IS NULL AND lines.kind = '{USAGE}'
"""
# What has no usage of this month behind it: corrections of earlier months, and what is no usage.
_OTHER = f"""
    SELECT lines.account, lines.kind, original_period, charge_class, model, meter, currency, price_version, tier,
           quantity, amount, invoices.invoice, issuer, line, corrects_invoice, corrects_line
    {_OF_LINES} AND (charge_class IS NOT NULL OR lines.kind <> '{USAGE}')
    ORDER BY lines.account, number, line
"""


class LineKey(NamedTuple):
    """What a line of an invoice bills. With a `tier`, `model` is what the price is for, such as `gpt-4o*`."""

    account: str
    model: str | None
    meter: str
    currency: str | None
    price_version: int | None
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """An invoice, who issued it, and which of its lines; None: what came after it is taken out again by another row."""

    invoice: str
    issuer: str
    line: int | None = None


class OwnLine(NamedTuple):
    """A line of usage of the month itself."""

    line: int
    amount: Decimal
    exact: Decimal


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A row that is no usage: `amount` is signed. `issued` None: of no invoice of the month."""

    key: LineKey
    issued: Issued | None
    amount: Decimal
    reason: str


ROUNDING, SINCE = "rounding", "usage after the invoice, billed by a correction"


@dataclass
class Invoices:
    """The invoices of a month, and how much of each line the rows have so far.

    `issued` are by account and currency, `lines` are of them; `closed` are the currencies of each account that has an
    invoice, also a voided one. What an invoiced month has that is on no line of it came later.
    """

    issued: Mapping[tuple[str, str | None], Issued] = field(default_factory=dict)
    lines: Mapping[LineKey, OwnLine] = field(default_factory=dict)
    closed: Mapping[str, Collection[str]] = field(default_factory=dict)
    _sums: dict[LineKey, Decimal] = field(default_factory=dict)

    @classmethod
    def read(cls, database: Database, month: date, accounts: Sequence[str]) -> Invoices:
        """Those of `accounts` (none: of all) that are not voided."""
        parameters = _parameters(month, accounts)
        issued = {
            (row["account"], row["currency"]): Issued(row["invoice"], row["issuer"])
            for row in database.execute(_INVOICES, parameters)
        }
        lines = {
            LineKey(*(row[name] for name in LineKey._fields)): OwnLine(row["line"], row["amount"], row["exact"])
            for row in select(database, _OWN, parameters)
        }
        closed = {row["account"]: row["currencies"] for row in database.execute(_CLOSED, parameters)}
        return cls(issued, lines, closed)

    def is_later(self, account: str, currency: str | None) -> bool:
        """Whether what the month has in a currency came after all its invoices: a later invoice corrects it."""
        return currency is not None and account in self.closed and currency not in self.closed[account]

    def has(self, account: str, currency: str | None) -> bool:
        """Whether the month in a currency is that of its invoice, or else of later corrections alone."""
        return (account, currency) in self.issued or self.is_later(account, currency)

    def of(self, key: LineKey, cost: Decimal) -> Issued | None:
        """The invoice of a row with `cost`; None: of none yet."""
        if self.has(key.account, key.currency):
            self._sums[key] = EXACT.add(self._sums.get(key, NOTHING), cost)
        return self._issued(key)

    def _issued(self, key: LineKey) -> Issued | None:
        found = self.issued.get((key.account, key.currency))
        # Where the plan includes all of it, that is its only line.
        line = self.lines.get(key) or self.lines.get(key._replace(tier=TIER_INCLUDED))
        return found if found is None or line is None else Issued(found.invoice, found.issuer, line.line)

    def adjustments(self) -> Iterator[Adjustment]:
        """What the rows of each line lack, after all of them were counted with `of`."""
        for key in dict.fromkeys([*self.lines, *self._sums]):
            _, amount, exact = self.lines.get(key, (None, NOTHING, NOTHING))
            issued = self._issued(key)
            for difference, reason in (
                (EXACT.subtract(amount, exact), ROUNDING),
                (EXACT.subtract(exact, self._sums.get(key, NOTHING)), SINCE),
            ):
                if difference:
                    yield Adjustment(key, issued, difference, reason)


def other_lines(database: Database, month: date, accounts: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The lines of the month's invoices that are no usage of the month, as rows of `invoice_lines`."""
    return select(database, _OTHER, _parameters(month, accounts))


def _parameters(month: date, accounts: Sequence[str]) -> dict[str, Any]:
    return {"month": month, "accounts": list(accounts) or None}
