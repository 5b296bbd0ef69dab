"""The forecast of a month: its cost so far, and the rest at the rate of the last days. It is an estimate.

How good it is, is measured: the same forecast of months that are over, made as many days after they began
(decision 0088).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

RECENT = timedelta(days=14)
"""Two whole weeks, so that a weekend does not matter, also before the month began: its first days alone say little."""
SOONEST = timedelta(hours=1)
"""Less than an hour says nothing about a month."""
CENT, TENTH = Decimal("0.01"), Decimal("0.1")


@dataclass(frozen=True)
class Rate:
    """What the usage of the last days cost, from the first of it on."""

    amount: Decimal
    since: datetime


def forecast(so_far: Decimal, rate: Rate | None, known_until: datetime, end: datetime) -> Decimal | None:
    """`so_far` plus the rate for the time from `known_until` to `end`, in cents; None: it is too early to say.

    The rate counts from the first usage, so that an account that began on the 20th is not taken for a slow one. Without
    a rate (no usage in the last days) nothing is added.
    """
    remaining = max(timedelta(), end - known_until)
    with localcontext(prec=1_000):  # cents of an amount of any size; Python's own 28 digits would be an error
        if not remaining or rate is None:
            return so_far.quantize(CENT, rounding=ROUND_HALF_EVEN)
        if known_until - rate.since < SOONEST:
            return None
        rest = rate.amount * _microseconds(remaining) / _microseconds(known_until - rate.since)
        return (so_far + rest).quantize(CENT, rounding=ROUND_HALF_EVEN)


def error_percent(expected: Decimal, actual: Decimal) -> Decimal | None:
    """By how much a forecast was off, without sign, in percent of the actual amount; None where that is 0."""
    if actual == 0:
        return None
    with localcontext(prec=1_000):
        return (abs(expected - actual) * 100 / abs(actual)).quantize(TENTH, rounding=ROUND_HALF_EVEN)


def mean_percent(errors: Sequence[Decimal]) -> Decimal | None:
    """The mean of errors in percent, to a tenth; None without any."""
    with localcontext(prec=1_000):
        return (sum(errors, Decimal()) / len(errors)).quantize(TENTH, rounding=ROUND_HALF_EVEN) if errors else None


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
