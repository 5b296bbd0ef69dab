"""Invoices in FOCUS: the rows of a line have its invoice, and rows of their own make their sum the line's amount.

Usage has all its decimals, and an invoice's line is rounded once. What the line lacks or has beyond the exact amount is
one row. Usage that came after the invoice is on its day, too, and is billed by a correction on a later invoice: a
second row takes it out of this one. So BilledCost adds up to the invoice (FOCUS, BilledCost-C-007-M).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from metering.digits import EXACT


class LineKey(NamedTuple):
    """What an invoice bills at one price. Lines of one key that differ in tier or conditions are added up."""

    account: str
    model: str | None
    meter: str
    currency: str | None
    price_version: int | None


@dataclass(frozen=True)
class Invoiced:
    """The `amount` that an invoice has for a key, and the `exact` one that it was rounded from."""

    invoice: str
    amount: Decimal
    exact: Decimal


@dataclass(frozen=True)
class Adjustment:
    """A row that is no usage: `amount` is signed."""

    key: LineKey
    invoice: str
    amount: Decimal
    reason: str


ROUNDING, SINCE = "rounding", "usage after the invoice, billed by a correction"


class Invoices:
    """The invoices of a month, and how much of each line the rows have so far."""

    def __init__(self, lines: Mapping[LineKey, Invoiced]) -> None:
        self._lines = lines
        self._sums: dict[LineKey, Decimal] = dict.fromkeys(lines, Decimal(0))

    def of(self, row: Mapping[str, Any], cost: Decimal) -> str | None:
        """The invoice of a row of usage with `cost`; None: of none yet."""
        key = LineKey(*(row[name] for name in LineKey._fields))
        line = self._lines.get(key)
        if line is None:
            return None
        self._sums[key] = EXACT.add(self._sums[key], cost)
        return line.invoice

    def adjustments(self) -> Iterator[Adjustment]:
        """What the rows of each line lack, after all of them were counted with `of`."""
        for key, line in self._lines.items():
            for amount, reason in (
                (EXACT.subtract(line.amount, line.exact), ROUNDING),
                (EXACT.subtract(line.exact, self._sums[key]), SINCE),
            ):
                if amount:
                    yield Adjustment(key, line.invoice, amount, reason)
