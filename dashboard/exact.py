"""Sums of money and quantities to the last digit: Python's default context silently rounds to 28 digits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from metering.digits import EXACT


class Measure(Decimal):
    """A quantity with a fraction. Pages show the digits it has; those of money are filled up, so that they align."""


Quantity = int | Measure
"""Of a meter: whole numbers are int."""


def total(amounts: Iterable[Decimal | int]) -> Decimal:
    """The sum of `amounts`, which are of one currency; 0 of none."""
    result = Decimal(0)
    for amount in amounts:
        result = EXACT.add(result, amount)
    return result


def plain(number: Decimal | int) -> Quantity:
    """The number without zeros behind its digits."""
    return int(number) if number == int(number) else Measure(EXACT.create_decimal(number).normalize(EXACT))


def total_quantity(quantities: Iterable[Decimal | int]) -> Quantity:
    """The sum of `quantities`; 0 of none."""
    return plain(total(quantities))


def with_plain(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """`row` with the columns `names` as quantities: Postgres adds up as numeric, with zeros. Null stays None."""
    return {**row, **{name: None if row[name] is None else plain(row[name]) for name in names}}
