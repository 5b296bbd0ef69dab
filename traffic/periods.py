"""What meters of a period bill: of each day or month a quantity that is a function of its members, in any order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from traffic.bills import Member
from traffic.calendar import ends_at
from traffic.catalog import Price
from traffic.instants import rfc3339
from traffic.meters import LATEST, UNIQUE, PeriodMeter
from traffic.once_per import Billed
from traffic.placement import Placement, UnplaceableError
from traffic.script import Outcome


@dataclass(frozen=True)
class Period:
    """A day or month of a meter, of one account, model and currency; all its price versions are corrected together."""

    account: str
    model: str | None
    meter: PeriodMeter
    currency: str | None
    first_day: date

    @classmethod
    def of(cls, outcome: Outcome, member: Member) -> Period:
        """Of which an outcome has this member."""
        return cls(outcome.account, outcome.model, member.meter, member.currency, member.first_day)


def periods(placement: Placement, live: Iterable[Billed], standing: Iterable[Billed]) -> tuple[list[Any], list[Any]]:
    """The lines of all periods live, and as they stand after an audit."""
    before, after = _members(live), _members(standing)
    corrected = {period: _is_corrected(placement, members) for period, members in before.items()}
    then = {period: corrected[period] if members == before.get(period) else None for period, members in after.items()}
    return list(_lines(before, corrected)), list(_lines(after, then))


Members = dict[Period, list[tuple[Outcome, Member]]]


def _members(bills: Iterable[Billed]) -> Members:
    found: Members = defaultdict(list)
    for outcome, bill in bills:
        for member in bill.members:
            found[Period.of(outcome, member)].append((outcome, member))
    return found


def _is_corrected(placement: Placement, members: list[tuple[Outcome, Member]]) -> bool | None:
    """Whether live has changed a period after it was closed; None: that depends on what came first."""
    late: set[bool | None] = set()
    for outcome, member in members:
        try:
            end_ms = ends_at(member.zone, member.meter.period, member.first_day)
            late.add(placement.is_straggler(end_ms, outcome.decided_ms))
        except UnplaceableError:
            late.add(None)
    is_certain = len({member.price for _, member in members}) == 1
    return False if late == {False} else True if late == {True} and is_certain else None


def _lines(members: Members, corrected: dict[Period, bool | None]) -> Iterator[dict[str, Any]]:
    """A line for each price version; what is not 0."""
    for period, found in sorted(members.items(), key=lambda item: _order(item[0])):
        of_price: dict[Price | None, list[tuple[Outcome, Member]]] = defaultdict(list)
        for outcome, member in found:
            of_price[member.price].append((outcome, member))
        for price, of_version in of_price.items():
            if quantity := _quantity(period.meter, of_version):
                yield {
                    "account": period.account,
                    "model": period.model,
                    "meter": period.meter.name,
                    "currency": period.currency,
                    "first_day": period.first_day.isoformat(),
                    "price_from": None if price is None else rfc3339(price.effective_from_ms),
                    "unit_price": None if price is None else f"{price.unit_price:f}",
                    "quantity": f"{quantity:f}",
                    "amount": "0" if price is None else f"{price.unit_price * quantity:f}",
                    "corrected": corrected[period],
                }


def _order(period: Period) -> tuple[str, ...]:
    return period.first_day.isoformat(), period.account, period.meter.name, period.model or "", period.currency or ""


def _quantity(meter: PeriodMeter, found: Iterable[tuple[Outcome, Member]]) -> Decimal:
    """How many different texts, the greatest number, or that of the latest event: of several at one instant the
    greatest.
    """
    if meter.aggregation == UNIQUE:
        return Decimal(len({member.value for _, member in found}))
    numbers = ((outcome.event_us if meter.aggregation == LATEST else 0, member.value) for outcome, member in found)
    return max((event_us, Decimal(value)) for event_us, value in numbers)[1]
