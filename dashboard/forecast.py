"""The forecast of a month: its cost so far, and the rest at the same rate. It is labelled as an estimate."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

SOONEST = timedelta(hours=1)
"""Less than an hour says nothing about a month."""

CENT = Decimal("0.01")


def forecast(so_far: Decimal, first_usage: datetime, known_until: datetime, end: datetime) -> Decimal | None:
    """`so_far` plus the pace since the first usage for the time from `known_until` to `end`, in cents; None: too early.

    The pace counts from the first usage, so that an account that began on the 20th is not taken for a slow one.
    """
    elapsed = min(known_until, end) - first_usage
    if elapsed < SOONEST:
        return None
    remaining = max(timedelta(), end - known_until)
    with localcontext(prec=1_000):  # cents of an amount of any size; Python's own 28 digits would be an error
        pace = so_far * _microseconds(remaining) / _microseconds(elapsed)
        return (so_far + pace).quantize(CENT, rounding=ROUND_HALF_EVEN)


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
