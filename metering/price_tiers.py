"""Prices whose amount depends on the account's month total: graduated and volume tiers, and packages.

Versions of such a price stand on a ladder in order of `effective_from`: each prices the units from where the version
before it ends. So an amount is a function of quantities per version, never of the order of events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from metering.digits import EXACT, plain

MAX_TIERS = 100
PRICE_DECIMALS, QUANTITY_DECIMALS = 12, 6
PRICE_LIMIT, QUANTITY_LIMIT = Decimal(10) ** 8, Decimal(10) ** 18
ZERO = Decimal(0)
_NUMBER = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?")


class Kind(StrEnum):
    """How a price turns quantities into money. A price of a unit needs no tiers, and is stored without `PriceTerms`."""

    UNIT = "unit"
    GRADUATED = "graduated"
    VOLUME = "volume"
    PACKAGE = "package"


@dataclass(frozen=True)
class Tier:
    """Up to and including `up_to` of the month total; None: above all others.

    `flat_price` is charged once a month where any unit is priced by the tier.
    """

    up_to: Decimal | None
    unit_price: Decimal
    flat_price: Decimal = ZERO


@dataclass(frozen=True)
class TierLine:
    """What one tier of one price version adds to a month.

    `amount` = quantity x `unit_price`, plus the tier's flat price; both are negative where units are taken back. Of
    packages, which have no price of a unit, `tier` has the size and `unit_price` is None.
    """

    tier: str
    quantity: Decimal
    unit_price: Decimal | None
    amount: Decimal


@dataclass(frozen=True)
class PriceTerms:
    """Tiers by `up_to`, the last without one; or a package with its size and price."""

    kind: Kind
    tiers: tuple[Tier, ...] = ()
    package_size: Decimal = ZERO
    package_price: Decimal = ZERO

    @classmethod
    def of(cls, document: Any) -> PriceTerms:
        """The terms in a JSON object. Raises ValueError that says what must be otherwise."""
        if not isinstance(document, dict):
            raise ValueError("must be a JSON object with kind")
        kind = document.get("kind")
        if kind in (Kind.GRADUATED, Kind.VOLUME):
            only(document, ("kind", "tiers"), str(kind))
            return cls(Kind(kind), _tiers(document.get("tiers")))
        if kind == Kind.PACKAGE:
            only(document, ("kind", "package_size", "package_price"), str(kind))
            size = checked_quantity(document.get("package_size"), "package_size")
            return cls(Kind.PACKAGE, (), size, checked_price(document.get("package_price"), "package_price"))
        raise ValueError(f"kind is {kind!r}: must be graduated, volume or package")

    @classmethod
    def parse(cls, text: str) -> PriceTerms:
        """The terms in a text (`text`). Raises ValueError."""
        try:
            document = json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise ValueError("must be a JSON object with kind") from error
        return cls.of(document)

    @property
    def document(self) -> dict[str, Any]:
        """As JSON: decimals are texts, and what is null or 0 is left out."""
        if self.kind is Kind.PACKAGE:
            return {
                "kind": self.kind.value,
                "package_size": plain(self.package_size),
                "package_price": plain(self.package_price),
            }
        return {"kind": self.kind.value, "tiers": [_tier_document(tier) for tier in self.tiers]}

    @property
    def text(self) -> str:
        """The one text of these terms."""
        return json.dumps(self.document, separators=(",", ":"))

    @property
    def words(self) -> str:
        """What it costs, in the currency of the price: `graduated: 2 up to 1000, 1 above`."""
        if self.kind is Kind.PACKAGE:
            return f"{plain(self.package_price)} per package of {plain(self.package_size)}"
        tiers = [
            f"{plain(tier.unit_price)} {'above' if tier.up_to is None else f'up to {plain(tier.up_to)}'}"
            + (f" and {plain(tier.flat_price)} a month" if tier.flat_price else "")
            for tier in self.tiers
        ]
        return f"{self.kind}: {', '.join(tiers)}"

    def lines(self, start: Decimal, end: Decimal, total: Decimal, *, is_last: bool) -> tuple[TierLine, ...]:
        """The price of the units after `start` up to and including `end`, where the ladder has `total` units.

        Where `end` is below `start` the version has less than nothing (a meter may report negative values): it takes
        back what these units cost by its own terms. Units below 0 are of the first tier. `is_last`: no later version
        has a part. The quantities of the lines add up to end - start. Raises ValueError where that is 0.
        """
        if start == end:
            raise ValueError(f"{start} to {end} of {total} is no part of a ladder")
        match self.kind:
            case Kind.GRADUATED:
                return tuple(self._graduated(start, end))
            case Kind.VOLUME:
                return (self._volume(EXACT.subtract(end, start), total, is_last=is_last),)
            case Kind.PACKAGE:
                return (self._package(start, end),)
        raise ValueError(f"a price of kind {self.kind} has no tiers")

    def next_unit_price(self, total: Decimal) -> Decimal:
        """What the first unit after `total` adds if the month ends with it: an estimate for usage so far.

        Flat prices are left out; in tiers by volume it is the price of the tier that the unit reaches. Of packages it
        is the price of the package that it opens, and 0 where one is open.
        """
        if self.kind is Kind.PACKAGE:
            return ZERO if EXACT.remainder(total, self.package_size) else self.package_price
        return next(tier.unit_price for tier in self.tiers if tier.up_to is None or total < tier.up_to)

    def _graduated(self, start: Decimal, end: Decimal) -> list[TierLine]:
        found, above = [], ZERO
        low, high, sign = (start, end, Decimal(1)) if start < end else (end, start, Decimal(-1))
        for number, tier in enumerate(self.tiers, start=1):
            until = high if tier.up_to is None else min(high, tier.up_to)
            quantity = EXACT.subtract(until, low if number == 1 else max(low, above))
            if quantity > 0:
                # The flat price belongs to the version that prices the first unit of the tier.
                flat = tier.flat_price if low <= above < high else ZERO
                found.append(_line(number, tier, above, EXACT.multiply(sign, quantity), EXACT.multiply(sign, flat)))
            above = until if tier.up_to is None else tier.up_to
        return found

    def _volume(self, quantity: Decimal, total: Decimal, *, is_last: bool) -> TierLine:
        above = ZERO
        for number, tier in enumerate(self.tiers, start=1):
            if tier.up_to is None or total <= tier.up_to:
                # The flat price of the whole total belongs to the version that prices the last unit.
                flat = tier.flat_price if is_last and total > 0 else ZERO
                return _line(number, tier, above, quantity, flat)
            above = tier.up_to
        raise AssertionError("the last tier has no bound")

    def _package(self, start: Decimal, end: Decimal) -> TierLine:
        opened = EXACT.subtract(_packages(end, self.package_size), _packages(start, self.package_size))
        quantity = EXACT.subtract(end, start)
        name = f"packages of {plain(self.package_size)}"
        return TierLine(name, quantity, None, EXACT.multiply(opened, self.package_price))


def _line(number: int, tier: Tier, above: Decimal, quantity: Decimal, flat: Decimal) -> TierLine:
    bound = f"above {plain(above)}" if tier.up_to is None else f"up to {plain(tier.up_to)}"
    amount = EXACT.add(EXACT.multiply(quantity, tier.unit_price), flat)
    return TierLine(f"{number}: {bound}", quantity, tier.unit_price, amount)


def _packages(quantity: Decimal, size: Decimal) -> Decimal:
    """How many packages a quantity opens: the last one may be used in part. Below 0 only a full one is taken back."""
    whole = EXACT.divide_int(quantity, size)
    return whole + 1 if EXACT.remainder(quantity, size) > 0 else whole


def _tiers(value: Any) -> tuple[Tier, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_TIERS:
        raise ValueError(f"tiers must be a list of 1 to {MAX_TIERS}, each {{up_to, unit_price, flat_price}}")
    found: list[Tier] = []
    for number, tier in enumerate(value):
        if not isinstance(tier, dict):
            raise ValueError(f"tiers.{number} must have up_to, unit_price and flat_price")
        only(tier, ("up_to", "unit_price", "flat_price"), f"tiers.{number}")
        is_last = number == len(value) - 1
        bound = tier.get("up_to")
        if is_last != (bound is None):
            must = "must be left out or null: the last tier has no bound" if is_last else "is missing"
            raise ValueError(f"tiers.{number}.up_to {must}")
        up_to = None if is_last else checked_quantity(bound, f"tiers.{number}.up_to")
        before = found[-1].up_to if found else None
        if up_to is not None and before is not None and up_to <= before:
            raise ValueError(
                f"tiers.{number}.up_to is {plain(up_to)}: must be more than {plain(before)}, of the tier before"
            )
        flat = tier.get("flat_price")
        found.append(
            Tier(
                up_to,
                checked_price(tier.get("unit_price"), f"tiers.{number}.unit_price"),
                ZERO if flat is None else checked_price(flat, f"tiers.{number}.flat_price"),
            )
        )
    return tuple(found)


def _tier_document(tier: Tier) -> dict[str, str]:
    bound = {} if tier.up_to is None else {"up_to": plain(tier.up_to)}
    flat = {"flat_price": plain(tier.flat_price)} if tier.flat_price else {}
    return {**bound, "unit_price": plain(tier.unit_price), **flat}


def only(document: Mapping[str, Any], names: tuple[str, ...], what: str) -> None:
    """Raises ValueError where a document has other names than these."""
    if other := sorted(str(name) for name in document if name not in names):
        raise ValueError(f"{what} has {', '.join(other)}: it may have {', '.join(names)}")


def checked_price(value: Any, what: str) -> Decimal:
    """The price or amount. Raises ValueError that says what it must be."""
    return _decimal(value, what, PRICE_DECIMALS, PRICE_LIMIT)


def checked_quantity(value: Any, what: str) -> Decimal:
    """The quantity. Raises ValueError that says what it must be."""
    found = _decimal(value, what, QUANTITY_DECIMALS, QUANTITY_LIMIT)
    if not found:
        raise ValueError(f"{what} must be more than 0")
    return found


def _decimal(value: Any, what: str, decimals: int, limit: Decimal) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError(f"{what} must be a decimal number of at least 0")
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{what} is {value!r}: must be a decimal number of at least 0")
    # One number has one text, also if it was written with more zeros.
    found = Decimal(plain(Decimal(text)))
    if found >= limit:
        raise ValueError(f"{what} is {text}: must be less than {limit:f}")
    if -int(found.as_tuple().exponent) > decimals:
        raise ValueError(f"{what} is {text}: must have at most {decimals} decimals")
    return found
