"""What outcomes bill: live, by what was known when they came, and after an audit, which knows all that came since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from traffic.attributes import attributes_of
from traffic.calendar import day_in, first_day, starts_at
from traffic.catalog import Catalog, Price
from traffic.generate import Traffic
from traffic.meters import PeriodMeter, Quantity, billed_elsewhere, members, quantities
from traffic.script import Outcome, TakenBack

Credits = Mapping[str, Decimal | None]
"""By meter how much is taken back of what it bills; None: all of that."""
Key = tuple[str, str]
"""Account and request id."""


@dataclass(frozen=True)
class Line:
    """What an outcome has of a meter: so much at this price (None: unpriced), and what another meter bills."""

    meter: str
    own: int | Decimal
    elsewhere: int | Decimal
    price: Price | None

    @property
    def unit_price(self) -> Decimal | None:
        """None: unpriced."""
        return None if self.price is None else self.price.unit_price

    @property
    def quantity(self) -> int | Decimal:
        """All of it."""
        return self.own + self.elsewhere


@dataclass(frozen=True)
class Member:
    """The text or number that an outcome adds to a period, at the price of the period's start (None: unpriced)."""

    meter: PeriodMeter
    first_day: date
    zone: str
    """Whose calendar names the day."""
    value: str | Decimal
    currency: str | None
    price: Price | None

    @property
    def terms(self) -> tuple[object, ...]:
        """All but which version of the price says so."""
        unit_price = None if self.price is None else self.price.unit_price
        return self.meter.name, self.first_day, self.value, self.currency, unit_price


@dataclass(frozen=True)
class Bill:
    """The lines of an outcome that have a quantity, and what it adds to periods."""

    currency: str | None
    lines: tuple[Line, ...]
    members: tuple[Member, ...] = ()

    def costs_the_same(self, other: Bill) -> bool:
        """Whether both are the same money, whichever versions of prices say so."""
        return self.currency == other.currency and self._terms == other._terms

    @property
    def _terms(self) -> frozenset[object]:
        lines = ((line.meter, line.own, line.elsewhere, line.unit_price) for line in self.lines)
        return frozenset((*lines, *(member.terms for member in self.members)))


def quantities_of(traffic: Traffic, outcome: Outcome) -> dict[str, Quantity]:
    """How much of each meter an outcome reports."""
    meters, of_request = traffic.placement.policy.meters, outcome.is_of_request
    return quantities(meters, outcome.outcome, outcome.reported, outcome.texts, is_of_request=of_request)


def known_catalog(traffic: Traffic, outcome: Outcome) -> Catalog:
    """The catalog as it was known when the last part of an outcome came."""
    return traffic.late.after if outcome.knows_late else traffic.late.before


def live_bill(traffic: Traffic, outcome: Outcome) -> Bill:
    """What joins makes of it: reversals are none of its business."""
    return _bill(traffic, outcome, known_catalog(traffic, outcome), {})


def audited_bill(traffic: Traffic, outcome: Outcome, taken: Credits | None) -> Bill:
    """What stands of it after an audit. `taken`: what is taken back of its request; None: all.

    Prices that came late hold now; what costs the same by them stays as it was.
    """
    if taken is None:
        return Bill(None, ())
    catalogs = known_catalog(traffic, outcome), traffic.late.after
    known, later = (_bill(traffic, outcome, catalog, taken) for catalog in catalogs)
    return known if known.costs_the_same(later) else later


def _bill(traffic: Traffic, outcome: Outcome, catalog: Catalog, taken: Credits) -> Bill:
    found, policy = quantities_of(traffic, outcome), traffic.placement.policy
    attributes = attributes_of(outcome.texts, outcome.reported)
    prices = {
        meter: catalog.price(outcome.account, outcome.model, meter, outcome.event_ms, attributes) for meter in found
    }
    priced = {meter for meter, price in prices.items() if price is not None}
    elsewhere = {} if policy.counts_parts_twice else billed_elsewhere(policy.meters, found, priced)
    lines = []
    for meter, quantity in found.items():
        other = elsewhere.get(meter, 0)
        own = _without((quantity or 0) - other, taken.get(meter, Decimal(0)))
        if own + other:
            lines.append(Line(meter, own, other, prices[meter]))
    of_periods = tuple(_members(traffic, outcome, catalog, taken))
    return Bill(catalog.currency(outcome.account, outcome.event_ms), tuple(lines), of_periods)


def _members(traffic: Traffic, outcome: Outcome, catalog: Catalog, taken: Credits) -> Iterator[Member]:
    """What an outcome adds to periods of the calendar that was known when it came.

    A credit of all that a meter bills takes it out; one of a quantity does not.
    """
    meters = {meter.name: meter for meter in traffic.placement.policy.period_meters}
    zone = known_catalog(traffic, outcome).timezone(outcome.account)
    day, account = day_in(zone, outcome.event_ms), outcome.account
    attributes = attributes_of(outcome.texts, outcome.reported)
    for name, value in members(meters.values(), outcome.outcome, outcome.reported, outcome.texts).items():
        if taken.get(name, Decimal(0)) is None:
            continue
        first = first_day(meters[name].period, day)
        start_ms = starts_at(zone, first)
        price = catalog.price(account, outcome.model, name, start_ms, attributes)
        yield Member(meters[name], first, zone, value, catalog.currency(account, start_ms), price)


def _without(own: int | Decimal, credit: Decimal | None) -> int | Decimal:
    """A credit is of what a meter bills itself, and no more than that."""
    return 0 if credit is None else own - min(own, credit)


def taken_of(reversals: Iterable[TakenBack]) -> Mapping[Key, Credits | None]:
    """What is taken back of each request, whatever came first: credits add up, and who takes all leaves nothing."""
    found: dict[Key, dict[str, Decimal | None] | None] = {}
    for reversal in reversals:
        of_request = found.setdefault((reversal.account, reversal.request_id), {})
        if reversal.meter is None:
            found[reversal.account, reversal.request_id] = None
        elif of_request is not None:
            so_far = of_request.get(reversal.meter, Decimal(0))
            of_request[reversal.meter] = (
                None if so_far is None or reversal.quantity is None else so_far + reversal.quantity
            )
    return found


def left_of(traffic: Traffic, outcome: Outcome, standing: Bill) -> dict[str, Quantity]:
    """Of each meter how much an outcome has after an audit, of which this bill stands."""
    left = {line.meter: line.quantity for line in standing.lines}
    return {meter: left.get(meter, 0) if found else found for meter, found in quantities_of(traffic, outcome).items()}
