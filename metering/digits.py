"""Decimals to the last digit: computed exactly, and as text with all significant digits and no trailing zeros."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, Inexact

EXACT = Context(prec=1_000, traps=[Inexact])
"""Raises where a digit would be lost. Python's own context keeps 28 digits, and drops the others without an error."""


def exact_sum(values: Iterable[Decimal]) -> Decimal:
    """The sum to the last digit, 0 of none."""
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total


def plain(value: Decimal) -> str:
    """A decimal without exponent and without trailing zeros, every other digit kept."""
    digits = format(value, "f")
    shorter = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if shorter == "-0" else shorter
