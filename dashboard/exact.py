"""Sums of money to the last digit: Python's own arithmetic keeps 28 digits, and says nothing about the others."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, Inexact

EXACT = Context(prec=1_000, traps=[Inexact])


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The sum of `amounts`, which are of one currency; 0 of none."""
    result = Decimal(0)
    for amount in amounts:
        result = EXACT.add(result, amount)
    return result
