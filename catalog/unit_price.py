"""The price of one unit, from a catalog file's price per number of units (`per`): exact, or refused.

`catalog.prices` has the same rule for edits by SQL (migration 0038).
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from metering.digits import plain

DECIMALS = 12
LARGEST_PRICE = Decimal(10) ** 8
STEPS = 10**DECIMALS
"""Fraction of a unit of the currency: a price per metered unit is a whole number of these."""


def _per(value: Any) -> int:
    # Its length is limited: Python refuses to read thousands of digits.
    if not isinstance(value, str | int) or not re.fullmatch(r"[0-9]{1,100}", str(value)) or not int(value):
        raise ValueError("must be a positive whole number, such as 1000000")
    return int(value)


def _unit_price(value: Any, info: ValidationInfo) -> Decimal:
    if not isinstance(value, str) or not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", value):
        raise ValueError("must be a decimal number, such as 0.0000025")
    per = info.data.get("per", 1)
    steps = Fraction(Decimal(value)) * STEPS / per
    unit = "" if per == 1 else " a unit"
    if steps < 0:
        raise ValueError("must not be negative")
    if steps >= LARGEST_PRICE * STEPS:
        raise ValueError(f"must be less than {LARGEST_PRICE:f}{unit}")
    if steps.denominator > 1:
        nearest = [near for near in (floor(steps), ceil(steps)) if near < LARGEST_PRICE * STEPS]
        taken = " or ".join(plain(Decimal(f"{near * per}e-{DECIMALS}")) for near in nearest)
        raise ValueError(f"must have at most {DECIMALS} decimals{unit}: write {taken}")
    return Decimal(f"{steps.numerator}e-{DECIMALS}")


Per = Annotated[int, BeforeValidator(_per)]
"""The number of units of a price."""
UnitPrice = Annotated[Decimal, BeforeValidator(_unit_price)]
"""Of one unit. A model has it behind its field `per`, by which it is divided."""
