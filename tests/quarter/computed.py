"""What a truth comes to, in Decimal, one line for each thing, meter by meter. Nothing of Weir."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, localcontext
from zoneinfo import ZoneInfo

from tests.quarter.truth import DROPPED, GRACE, Asked, Contract, Truth

EXACT = Context(prec=100)
"""More digits than a sum of a quarter has, so that nothing is rounded."""
MINUTE = timedelta(minutes=1)
Dimensions = tuple[tuple[str, str], ...]
Sums = dict[Hashable, tuple[Decimal, Decimal | None]]
"""Quantity and amount (None: nothing of it has a price) by any key; none of which both are 0."""


@dataclass(frozen=True)
class Line:
    """One meter of one thing: what it was, and what one of it cost (None: it has no price)."""

    account: str
    model: str | None
    meter: str
    currency: str | None
    dimensions: Dimensions
    minute: datetime
    day: date
    quantity: Decimal
    unit_price: Decimal | None
    is_dropped: bool
    """It came after grace, and its meter drops that."""

    @property
    def amount(self) -> Decimal | None:
        """Quantity × unit price."""
        return None if self.unit_price is None else EXACT.multiply(self.quantity, self.unit_price)


def lines(truth: Truth) -> Iterator[Line]:
    """All lines of all that was asked for."""
    for asked in truth.asked:
        contract = contract_at(truth.contracts.get(asked.account, []), asked.occurred)
        minute = asked.occurred.replace(second=0, microsecond=0)
        zone = ZoneInfo(truth.zones.get(asked.account, "UTC"))
        is_late = asked.known >= minute + MINUTE + GRACE
        for meter, quantity in asked.quantities.items():
            if quantity:
                yield Line(
                    asked.account,
                    asked.model,
                    meter,
                    contract.currency if contract else None,
                    asked.dimensions,
                    minute,
                    asked.occurred.astimezone(zone).date(),
                    quantity,
                    _unit_price(truth, asked, contract, meter),
                    is_late and meter == DROPPED,
                )


def contract_at(told: list[Contract], instant: datetime) -> Contract | None:
    """The last that was told of those that have begun; before all of them the first."""
    begun = [contract for contract in told if contract.holds_from <= instant]
    return begun[-1] if begun else next(iter(told), None)


def _unit_price(truth: Truth, asked: Asked, contract: Contract | None, meter: str) -> Decimal | None:
    if contract is None or asked.model is None:
        return None
    key = contract.plan, asked.model, meter, contract.currency
    begun = {
        holds_from: price for holds_from, price in truth.prices.get(key, {}).items() if holds_from <= asked.occurred
    }
    last = max(begun, default=None)
    ends = truth.ends.get((key, last)) if last is not None else None
    return None if last is None or (ends is not None and ends <= asked.occurred) else begun[last]


def month_of(line: Line, zone: str) -> datetime:
    """When the month of its day begins in a zone."""
    return datetime.combine(line.day.replace(day=1), time(), ZoneInfo(zone)).astimezone(UTC)


def summed(rows: Iterable[Line], key: Callable[[Line], Hashable]) -> Sums:
    """The lines by any key."""
    return sums((key(row), row.quantity, row.amount) for row in rows)


def sums(rows: Iterable[tuple[Hashable, Decimal, Decimal | None]]) -> Sums:
    """Quantities and amounts by key."""
    added: dict[Hashable, tuple[Decimal, Decimal | None]] = defaultdict(lambda: (Decimal(0), None))
    with localcontext(EXACT):
        for key, quantity, amount in rows:
            before, money = added[key]
            added[key] = (before + quantity, money if amount is None else (money or Decimal(0)) + amount)
    return {key: each for key, each in added.items() if each[0] or each[1]}
