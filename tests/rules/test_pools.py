"""Pools: members pay together what the pool costs, each for its own quantity, by an oracle in exact fractions.

The oracle shares one tier after the other as decision 0168 says it: whole steps of the exact share, and one more for
those that miss most. It shares no code with `metering.pools`.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metering.pools import largest_remainder, member_lines
from metering.price_tiers import PriceTerms, TierLine
from tests.rules.test_price_tiers import BOUNDS, documents

MILLIONTH, PICO = Fraction(1, 10**6), Fraction(1, 10**12)
members = st.lists(st.one_of(BOUNDS, st.integers(1, 60).map(Decimal)), min_size=1, max_size=6)


def oracle_shares(whole: Fraction, weights: list[Fraction], step: Fraction) -> list[Fraction]:
    """By the largest remainder, in steps."""
    exact = [whole * weight / sum(weights) for weight in weights]
    shares = [share // step * step for share in exact]
    missing = sorted(range(len(weights)), key=lambda place: (shares[place] - exact[place], place))
    for place in missing[: int((whole - sum(shares)) / step)]:
        shares[place] += step
    return shares


def oracle_members(lines: list[TierLine], quantities: list[Decimal]) -> list[list[tuple[str, Fraction, Fraction]]]:
    """By member its tiers, with quantity and amount."""
    left = [Fraction(quantity) for quantity in quantities]
    found: list[list[tuple[str, Fraction, Fraction]]] = [[] for _ in quantities]
    for line in lines:
        sign = 1 if line.quantity > 0 else -1
        if line is lines[-1]:
            shares = list(left)
        else:
            of_tier = oracle_shares(Fraction(abs(line.quantity)), [abs(each) for each in left], MILLIONTH)
            shares = [sign * share for share in of_tier]
        left = [before - share for before, share in zip(left, shares, strict=True)]
        price = Fraction(line.unit_price or 0)
        flat = Fraction(line.amount) - Fraction(line.quantity) * price
        flats = oracle_shares(abs(flat), [abs(share) for share in shares], PICO)
        for own, share, of_flat in zip(found, shares, flats, strict=True):
            if share:
                own.append((line.tier, share, share * price + (of_flat if flat > 0 else -of_flat)))
    return found


@given(documents, members, st.integers(0, 80).map(Decimal), st.booleans(), st.booleans())
def test_members_pay_for_their_own_quantities_what_the_pool_costs_together(
    document: dict[str, Any], quantities: list[Decimal], start: Decimal, is_last: bool, is_negative: bool
) -> None:
    if is_negative:
        quantities = [-quantity for quantity in quantities]
    end = start + sum(quantities)
    lines = list(PriceTerms.of(document).lines(start, end, end, is_last=is_last))
    found = [member_lines(lines, quantities, place) for place in range(1, len(quantities) + 1)]
    as_fractions = [[(line.tier, Fraction(line.quantity), Fraction(line.amount)) for line in own] for own in found]
    assert as_fractions == oracle_members(lines, quantities)
    for own, quantity in zip(found, quantities, strict=True):
        assert sum(Fraction(line.quantity) for line in own) == Fraction(quantity)
        assert all(line.quantity for line in own)
    for line in lines:
        of_tier = [other for own in found for other in own if other.tier == line.tier]
        assert sum(Fraction(other.quantity) for other in of_tier) == Fraction(line.quantity)
        assert sum(Fraction(other.amount) for other in of_tier) == Fraction(line.amount)
        assert {other.unit_price for other in of_tier} == {line.unit_price}


@given(documents, BOUNDS)
def test_a_pool_of_one_account_is_no_pool(document: dict[str, Any], quantity: Decimal) -> None:
    lines = PriceTerms.of(document).lines(Decimal(0), quantity, quantity, is_last=True)
    assert member_lines(lines, [quantity], 1) == lines


@given(st.integers(0, 10**20), st.lists(st.integers(0, 10**12), min_size=1, max_size=8).filter(any))
def test_steps_are_shared_to_the_last_and_nobody_is_a_whole_step_off(total: int, weights: list[int]) -> None:
    shares = largest_remainder(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(total * weight, sum(weights))) < 1
        assert weight or not share


def test_the_last_millionth_of_a_tier_is_of_the_first_of_equal_members_and_a_flat_price_follows_its_units() -> None:
    terms = PriceTerms.of(
        {"kind": "graduated", "tiers": [{"up_to": "1000", "unit_price": "2"}, {"unit_price": "1", "flat_price": "10"}]}
    )
    lines = terms.lines(Decimal(0), Decimal(1500), Decimal(1500), is_last=True)
    shown = [[(line.quantity, line.amount) for line in member_lines(lines, [Decimal(500)] * 3, n)] for n in (1, 2, 3)]
    first = [
        (Decimal("333.333334"), Decimal("666.666668")),
        # 166.666666, and as much of 10 as of the 500 units in the tier.
        (Decimal("166.666666"), Decimal("169.99999932")),
    ]
    other = [(Decimal("333.333333"), Decimal("666.666666")), (Decimal("166.666667"), Decimal("170.00000034"))]
    assert shown == [first, other, other]
