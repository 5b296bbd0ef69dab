"""What an account pays for having a plan: a flat fee a month, and the least and the most that its month comes to.

All are prorated by the days of the account's calendar on which it has the plan. A third of a fee has no last digit, so
a fee accrues: by the end of a day it has come to fee x days so far / days of the month, cut after the 12th decimal, and
the day costs what it adds. So any days of a month have one exact amount, and all of them come to the whole fee.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from metering.digits import EXACT, plain
from metering.price_models import ALIAS_METER, PLAN, PricedModel
from metering.price_tiers import (
    PRICE_DECIMALS,
    QUANTITY_DECIMALS,
    ZERO,
    PriceTerms,
    checked_price,
    checked_quantity,
    only,
)

KIND = "plan"
"""The `kind` of these terms, as `metering.price_tiers.Kind` of a price."""
PLAN_MODEL = PricedModel.of("plan", {PLAN: "month"}).text
"""In the catalog the terms of a plan are a row of prices of this model, which prices no usage."""
PLAN_METER = ALIAS_METER
"""The meter of that row."""
MAX_INCLUDED = 50
"""Meters with an included quantity."""
INCLUDED = "included"
_AMOUNTS = ("flat_fee", "minimum_amount", "maximum_amount")


class Fee(StrEnum):
    """Kinds of the lines that are no usage."""

    FLAT = "flat"
    """The flat fee."""
    MINIMUM = "minimum"
    """What the month lacks of the minimum."""
    MAXIMUM = "maximum"
    """What the month has beyond the maximum: not positive."""


FEE_WORDS = {Fee.FLAT: "flat fee", Fee.MINIMUM: "up to the minimum", Fee.MAXIMUM: "above the maximum"}
"""For people."""


@dataclass(frozen=True)
class PlanTerms:
    """Amounts and quantities of a whole month, in the currency of the row. `maximum_amount` None: there is no maximum.

    `included`: by meter how much of its usage, over all prices of the plan, costs nothing.
    """

    flat_fee: Decimal = ZERO
    minimum_amount: Decimal = ZERO
    maximum_amount: Decimal | None = None
    included: Mapping[str, Decimal] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Any) -> PlanTerms:
        """The terms in a JSON object. Raises ValueError that says what must be otherwise."""
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise ValueError(f"must be a JSON object whose kind is {KIND}")
        only(document, ("kind", *_AMOUNTS, INCLUDED), "a plan")
        given = {name: document[name] for name in (*_AMOUNTS, INCLUDED) if document.get(name) is not None}
        if not given:
            raise ValueError(f"must have at least one of {', '.join((*_AMOUNTS, INCLUDED))}")
        amounts = {name: checked_price(value, name) for name, value in given.items() if name != INCLUDED}
        found = cls(**amounts, included=_included(given.get(INCLUDED, {})))
        if found.maximum_amount is not None and found.maximum_amount < found.minimum_amount:
            raise ValueError(
                f"maximum_amount is {plain(found.maximum_amount)}: must be at least the minimum_amount, "
                f"{plain(found.minimum_amount)}"
            )
        return found

    @property
    def document(self) -> dict[str, Any]:
        """As JSON: decimals are texts; a fee or minimum of 0 is left out unless nothing else is there."""
        amounts = {
            "flat_fee": self.flat_fee or None,
            "minimum_amount": self.minimum_amount or None,
            "maximum_amount": self.maximum_amount,
        }
        found: dict[str, Any] = {name: plain(amount) for name, amount in amounts.items() if amount is not None}
        if self.included:
            found[INCLUDED] = {meter: plain(quantity) for meter, quantity in sorted(self.included.items())}
        return {"kind": KIND, **(found or {"flat_fee": "0"})}

    @property
    def text(self) -> str:
        """The one text of these terms."""
        return json.dumps(self.document, separators=(",", ":"), ensure_ascii=False)

    @property
    def words(self) -> str:
        """What it costs, in the currency of the row: `50 a month, at least 100, at most 500`."""
        found = [f"{plain(self.flat_fee)} a month"] if self.flat_fee else []
        found += [f"at least {plain(self.minimum_amount)}"] if self.minimum_amount else []
        found += [f"at most {plain(self.maximum_amount)}"] if self.maximum_amount is not None else []
        found += [f"{plain(quantity)} {meter} included" for meter, quantity in sorted(self.included.items())]
        return ", ".join(found) or "0 a month"


def _included(value: Any) -> Mapping[str, Decimal]:
    if not isinstance(value, dict) or len(value) > MAX_INCLUDED or "" in value:
        raise ValueError(f"{INCLUDED} must have the quantities of at most {MAX_INCLUDED} meters")
    return {meter: checked_quantity(quantity, f"{INCLUDED}.{meter}") for meter, quantity in value.items()}


def terms_of(document: Any) -> PriceTerms | PlanTerms:
    """The terms of a price or of a plan in a JSON object. Raises ValueError that says what must be otherwise."""
    is_of_plan = isinstance(document, dict) and document.get("kind") == KIND
    return PlanTerms.of(document) if is_of_plan else PriceTerms.of(document)


def parse_terms(text: str) -> PriceTerms | PlanTerms:
    """The same in a text. Raises ValueError."""
    try:
        document = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise ValueError("must be a JSON object with kind") from error
    return terms_of(document)


class PlanKey(NamedTuple):
    """What terms are of."""

    plan: str
    currency: str


@dataclass(frozen=True)
class Stretch:
    """That an account has a plan, and which terms that has, in `[begins, until)`; None: for ever."""

    key: PlanKey
    begins: datetime
    until: datetime | None
    terms: PlanTerms | None = None

    def overlaps(self, start: datetime, end: datetime) -> bool:
        """Whether any of `[start, end)` is in it."""
        return self.begins < end and (self.until is None or self.until > start)


Charged = Callable[[Fee | None, Decimal], Decimal]
"""What is charged for a fee or (None) for a limit that is exactly so much."""


def _exactly(_: Fee | None, amount: Decimal) -> Decimal:
    return amount


@dataclass(frozen=True)
class PlanMonth:
    """What the terms of a plan come to on the days of a month that an account has it, exact.

    `maximum` None: a day of them has no maximum, so neither have they.
    """

    days: int
    flat_fee: Decimal = ZERO
    minimum: Decimal = ZERO
    maximum: Decimal | None = None
    included: Mapping[str, Decimal] = field(default_factory=dict)
    """By meter, cut after the 6th decimal."""

    @property
    def depends_on_usage(self) -> bool:
        """Whether anything but a flat fee is of it."""
        return bool(self.minimum or self.maximum is not None or self.included)

    def fees(self, usage: Decimal, charged: Charged = _exactly) -> Mapping[Fee, Decimal]:
        """The fees beside what the plan's `usage` costs, those of 0 left out. Without a minimum credit stays credit.

        On an invoice `usage` is the sum of rounded lines, and `charged` rounds: then minimum and maximum are what all
        lines of the plan come to.
        """
        total = EXACT.add(usage, charged(Fee.FLAT, self.flat_fee))
        minimum = charged(None, self.minimum)
        maximum = None if self.maximum is None else charged(None, self.maximum)
        found = {Fee.FLAT: self.flat_fee}
        if self.minimum and total < minimum:
            found[Fee.MINIMUM] = EXACT.subtract(minimum, total)
        elif maximum is not None and total > maximum:
            found[Fee.MAXIMUM] = EXACT.subtract(maximum, total)
        return {fee: amount for fee, amount in found.items() if amount}


def accrued(amount: Decimal, days: int, of_month: int, decimals: int = PRICE_DECIMALS) -> Decimal:
    """What an amount of a month has come to after so many of its days, cut after so many decimals."""
    steps = EXACT.multiply(amount.scaleb(decimals, EXACT), Decimal(days))
    return EXACT.divide_int(steps, Decimal(of_month)).scaleb(-decimals, EXACT)


def plan_months(days: Sequence[tuple[datetime, datetime]], stretches: Iterable[Stretch]) -> Mapping[PlanKey, PlanMonth]:
    """The `[start, end)` of each day of a month → the plans that have any of these days, where any day has terms.

    A day belongs to the first plan with terms that the account has on it; where none has terms, to the first plan.
    """
    known = sorted(stretches, key=lambda stretch: (stretch.terms is None, stretch.begins))
    by_plan: dict[PlanKey, list[tuple[int, PlanTerms | None]]] = {}
    for number, (start, end) in enumerate(days):
        found = next((stretch for stretch in known if stretch.overlaps(start, end)), None)
        if found is not None:
            by_plan.setdefault(found.key, []).append((number, found.terms))
    return {
        key: _plan_month(of_plan, len(days))
        for key, of_plan in by_plan.items()
        if any(terms is not None for _, terms in of_plan)
    }


def _plan_month(of_plan: Sequence[tuple[int, PlanTerms | None]], days: int) -> PlanMonth:
    flat_fee, minimum, maximum = ZERO, ZERO, ZERO
    has_maximum = True
    included: dict[str, Decimal] = {}
    for number, terms in of_plan:
        if terms is None or terms.maximum_amount is None:
            has_maximum = False
        else:
            maximum = EXACT.add(maximum, _of_day(terms.maximum_amount, number, days))
        if terms is not None:
            flat_fee = EXACT.add(flat_fee, _of_day(terms.flat_fee, number, days))
            minimum = EXACT.add(minimum, _of_day(terms.minimum_amount, number, days))
            for meter, quantity in terms.included.items():
                of_day = _of_day(quantity, number, days, QUANTITY_DECIMALS)
                included[meter] = EXACT.add(included.get(meter, ZERO), of_day)
    return PlanMonth(len(of_plan), flat_fee, minimum, maximum if has_maximum else None, included)


def _of_day(amount: Decimal, number: int, days: int, decimals: int = PRICE_DECIMALS) -> Decimal:
    return EXACT.subtract(accrued(amount, number + 1, days, decimals), accrued(amount, number, days, decimals))
