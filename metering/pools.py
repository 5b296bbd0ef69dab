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
    found = []
    decimals, every = _shares(tuple(lines), tuple(quantities))
    for line, (shares, flat_shares) in zip(lines, every, strict=True):
        if share := shares[place - 1]:
            quantity = _of_steps(share, decimals).copy_sign(line.quantity)
            by_unit = EXACT.multiply(quantity, ZERO if line.unit_price is None else line.unit_price)
            flat = _of_steps(flat_shares[place - 1], PRICE_DECIMALS) if flat_shares else ZERO
            found.append(replace(line, quantity=quantity, amount=EXACT.add(by_unit, flat)))
    return tuple(found)


@lru_cache(maxsize=256)
def _shares(
    lines: tuple[TierLine, ...], quantities: tuple[Decimal, ...]
) -> tuple[int, list[tuple[list[int], list[int]]]]:
    """The decimals of units, and by line what members have of these and of its flat price (empty: it has none).

    Each row of a pool asks for its own. Those of several versions and pools come in turns.
    """
    decimals = max(QUANTITY_DECIMALS, *map(_decimals, quantities), *(_decimals(line.quantity) for line in lines))
    left = [abs(_steps(quantity, decimals)) for quantity in quantities]
    found = []
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        shares = list(left) if is_last else largest_remainder(abs(_steps(line.quantity, decimals)), left)
        left = [before - share for before, share in zip(left, shares, strict=True)]
        found.append((shares, _flat_shares(line, shares)))
    return decimals, found


def _flat_shares(line: TierLine, shares: Sequence[int]) -> list[int]:
    price = ZERO if line.unit_price is None else line.unit_price
    flat = _steps(EXACT.subtract(line.amount, EXACT.multiply(line.quantity, price)), PRICE_DECIMALS)
    found = largest_remainder(abs(flat), shares) if flat else []
    return found if flat > 0 else [-share for share in found]


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
