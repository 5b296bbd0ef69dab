"""What one member of a pool pays of a part of the pool's ladder.

Accounts below a parent may have one total for tiers and packages. Its units are shared by quantity, the last steps by
the largest remainder, so that members pay together what the pool costs, each for its own quantity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

from metering.digits import EXACT
from metering.price_tiers import PRICE_DECIMALS, QUANTITY_DECIMALS, ZERO, TierLine


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """`total` steps, shared in proportion to weights of at least 0 and not all 0.

    Each has the whole steps of its share; those that are left go to the largest remainders, of equal ones to the first.
    """
    of_all = sum(weights)
    shares = [total * weight // of_all for weight in weights]
    remainders = [total * weight % of_all for weight in weights]
    for place in sorted(range(len(weights)), key=lambda place: -remainders[place])[: total - sum(shares)]:
        shares[place] += 1
    return shares


def member_lines(lines: Sequence[TierLine], quantities: Sequence[Decimal], place: int) -> tuple[TierLine, ...]:
    """What the member at a `place` (from 1) pays of `lines`, a part of the pool's ladder: its quantities are its own.

    `quantities` are those of all members that have a part of it, in the order of their names, of one sign and none 0.
    Units of each tier are shared by what members have left, and the last tier takes the rest. A line costs its quantity
    times the unit price, and its share of a flat price; of packages, which have no price of a unit, its share of all.
    """
    return _of_members(tuple(lines), tuple(quantities))[place - 1]


@lru_cache(maxsize=64)
def _of_members(lines: tuple[TierLine, ...], quantities: tuple[Decimal, ...]) -> list[tuple[TierLine, ...]]:
    """By member: each row of a pool asks for its own, one after the other."""
    decimals = max(QUANTITY_DECIMALS, *map(_decimals, quantities), *(_decimals(line.quantity) for line in lines))
    left = [abs(_steps(quantity, decimals)) for quantity in quantities]
    found: list[list[TierLine]] = [[] for _ in quantities]
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        shares = list(left) if is_last else largest_remainder(abs(_steps(line.quantity, decimals)), left)
        left = [before - share for before, share in zip(left, shares, strict=True)]
        for own, share, amount in zip(found, shares, _amounts(line, shares, decimals), strict=True):
            if share:
                quantity = _of_steps(share, decimals).copy_sign(line.quantity)
                own.append(replace(line, quantity=quantity, amount=amount))
    return [tuple(own) for own in found]


def _amounts(line: TierLine, shares: Sequence[int], decimals: int) -> list[Decimal]:
    price = ZERO if line.unit_price is None else line.unit_price
    by_unit = [
        EXACT.multiply(_of_steps(share, decimals).copy_sign(line.quantity) if share else ZERO, price)
        for share in shares
    ]
    flat = _steps(EXACT.subtract(line.amount, EXACT.multiply(line.quantity, price)), PRICE_DECIMALS)
    of_flat = largest_remainder(abs(flat), shares)
    return [
        EXACT.add(amount, _of_steps(share if flat > 0 else -share, PRICE_DECIMALS))
        for amount, share in zip(by_unit, of_flat, strict=True)
    ]


def _decimals(value: Decimal) -> int:
    return max(0, -int(value.as_tuple().exponent))


def _steps(value: Decimal, decimals: int) -> int:
    """How many times 10^-decimals it is. Raises ValueError where that is no whole number."""
    steps = EXACT.scaleb(value, decimals)
    if steps != steps.to_integral_value():
        raise ValueError(f"{value} has more than {decimals} decimals")
    return int(steps)


def _of_steps(steps: int, decimals: int) -> Decimal:
    return EXACT.scaleb(Decimal(steps), -decimals)
