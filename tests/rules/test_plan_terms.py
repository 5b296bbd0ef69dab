"""What a plan costs beside usage: compared with an oracle in fractions that shares no code with it.

The oracle walks the days of a month one by one, finds the plan of each by its definition, and adds up exact fractions.
A fee accrues with its digits cut after the 12th, so an amount may be below the fraction by less than that for each time
that an account takes a plan up and leaves it; a whole month is exact.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.plan_terms import (
    PLAN_MODEL,
    Fee,
    PlanKey,
    PlanMonth,
    PlanTerms,
    Stretch,
    accrued,
    parse_terms,
    plan_months,
    terms_of,
)
from metering.price_models import PricedModel, PricedModels
from metering.price_tiers import PriceTerms
from tests.rules.test_price_tiers import BOUNDS

START = datetime(2026, 10, 1, tzinfo=UTC)
ULP = Fraction(1, 10**12)
AMOUNTS = st.one_of(st.just(Decimal(0)), st.decimals(0, Decimal(99999999), places=12), st.integers(0, 500).map(Decimal))


@st.composite
def plan_documents(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted([draw(AMOUNTS), draw(AMOUNTS)])
    given_ones = {"flat_fee": draw(AMOUNTS), "minimum_amount": low, "maximum_amount": high}
    names = draw(st.sets(st.sampled_from(list(given_ones)), min_size=1))
    found: dict[str, Any] = {name: f"{given_ones[name]:f}" for name in given_ones if name in names}
    if included := draw(st.dictionaries(st.sampled_from(["tokens", "calls"]), BOUNDS)):
        found["included"] = {meter: f"{quantity:f}" for meter, quantity in included.items()}
    return {"kind": "plan", **found}


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[datetime, datetime]], list[Stretch]]:
    """Days of a month (one of them of 23 or 25 hours), and stretches of two plans within it, in any order."""
    number, changed = draw(st.integers(28, 31)), draw(st.integers(0, 27))
    ends = [
        START + timedelta(days=day + 1, hours=draw(st.sampled_from([0, -1, 1])) * (day >= changed))
        for day in range(number)
    ]
    days = list(zip([START, *ends], ends, strict=False))
    borders = sorted(draw(st.sets(st.integers(-40, 24 * 33), max_size=6)))
    instants = [START + timedelta(hours=hour) for hour in borders]
    found = []
    for begins, until in zip(instants, [*instants[1:], None], strict=False):
        key = PlanKey(draw(st.sampled_from(["a", "b"])), "EUR")
        terms = draw(st.one_of(st.none(), plan_documents().map(PlanTerms.of)))
        if draw(st.booleans()) or until is None:
            found.append(Stretch(key, begins, until, terms))
    return days, draw(st.permutations(found))


def plan_of_day(start: datetime, end: datetime, stretches: list[Stretch]) -> Stretch | None:
    """The first with terms on the day, else the first."""
    there = [s for s in stretches if s.begins < end and (s.until is None or s.until > start)]
    with_terms = [s for s in there if s.terms is not None]
    return min(with_terms or there, key=lambda s: s.begins, default=None)


@given(histories())
def test_fees_are_prorated_by_the_days_that_an_account_has_the_plan(
    history: tuple[list[tuple[datetime, datetime]], list[Stretch]],
) -> None:
    days, stretches = history
    found = plan_months(days, stretches)
    held = [plan_of_day(*day, stretches) for day in days]
    for plan in ("a", "b"):
        key = PlanKey(plan, "EUR")
        mine = [s for s in held if s is not None and s.key == key]
        if not any(s.terms for s in mine):
            assert key not in found
            continue
        month = found[key]
        assert month.days == len(mine)
        terms = [s.terms or PlanTerms() for s in mine]
        exact = {
            "flat_fee": sum((Fraction(t.flat_fee) for t in terms), Fraction()) / len(days),
            "minimum": sum((Fraction(t.minimum_amount) for t in terms), Fraction()) / len(days),
        }
        for name, amount in exact.items():
            assert abs(Fraction(getattr(month, name)) - amount) < len(days) * ULP
        for meter in ("tokens", "calls"):
            quantity = sum((Fraction(t.included.get(meter, 0)) for t in terms), Fraction()) / len(days)
            assert abs(Fraction(month.included.get(meter, 0)) - quantity) < len(days) * Fraction(1, 10**6)
        caps = [t.maximum_amount for t in terms]
        if None in caps or not all(s.terms for s in mine):
            assert month.maximum is None
        else:
            assert month.maximum is not None
            exact_cap = sum((Fraction(cap) for cap in caps if cap is not None), Fraction()) / len(days)
            assert abs(Fraction(month.maximum) - exact_cap) < len(days) * ULP


@given(AMOUNTS, st.integers(28, 31), st.data())
def test_parts_of_a_month_under_equal_terms_come_to_the_whole_fee_to_the_last_digit(
    amount: Decimal, number: int, data: st.DataObject
) -> None:
    days = [(START + timedelta(days=day), START + timedelta(days=day + 1)) for day in range(number)]
    quantity = Decimal(data.draw(st.integers(1, 10**9))).scaleb(-6)
    terms = PlanTerms(amount, Decimal(0), amount, {"tokens": quantity})
    borders = sorted(data.draw(st.sets(st.integers(1, number - 1), max_size=4)))
    starts = [START + timedelta(days=day) for day in [0, *borders]]
    parts = [
        Stretch(PlanKey(f"p{place}", "EUR"), begins, until, terms)
        for place, (begins, until) in enumerate(zip(starts, [*starts[1:], None], strict=True))
    ]
    found = plan_months(days, parts)
    assert sum(Fraction(month.flat_fee) for month in found.values()) == Fraction(amount)
    assert sum(Fraction(month.maximum or 0) for month in found.values()) == Fraction(amount)
    assert sum(Fraction(month.included["tokens"]) for month in found.values()) == Fraction(quantity)
    assert sum(month.days for month in found.values()) == number


@given(AMOUNTS, st.integers(0, 31))
def test_what_a_fee_has_come_to_is_the_fraction_with_its_digits_cut_after_the_twelfth(
    amount: Decimal, days: int
) -> None:
    exact = Fraction(amount) * days / 31
    assert Fraction(accrued(amount, days, 31)) == (exact // ULP) * ULP
    assert accrued(amount, 31, 31) == amount


@given(st.lists(AMOUNTS, min_size=2, max_size=2), AMOUNTS, AMOUNTS)
def test_a_month_comes_to_usage_and_fee_but_never_below_the_minimum_nor_above_the_maximum(
    bounds: list[Decimal], flat_fee: Decimal, usage: Decimal
) -> None:
    low, high = sorted(bounds)
    fees = PlanMonth(31, flat_fee, low, high).fees(usage)
    total = Fraction(usage) + sum(map(Fraction, fees.values()))
    assert total == min(max(Fraction(usage) + Fraction(flat_fee), Fraction(low)), Fraction(high))
    assert 0 not in fees.values()
    assert fees.get(Fee.MAXIMUM, Decimal(-1)) < 0 < fees.get(Fee.MINIMUM, Decimal(1))


@given(plan_documents())
def test_terms_of_a_plan_have_one_text(document: dict[str, Any]) -> None:
    terms = PlanTerms.of(document)
    assert parse_terms(terms.text) == terms
    assert PlanTerms.of(terms.document).text == terms.text


def test_terms_are_read_by_their_kind_and_said_in_words() -> None:
    amounts = {"flat_fee": "50.0", "minimum_amount": 100, "maximum_amount": "500"}
    terms = terms_of({"kind": "plan", **amounts, "included": {"calls": "10"}})
    assert isinstance(terms, PlanTerms)
    assert terms.words == "50 a month, at least 100, at most 500, 10 calls included"
    assert PlanTerms.of({"kind": "plan", "flat_fee": 0}).words == "0 a month"
    assert isinstance(terms_of({"kind": "package", "package_size": "1", "package_price": "1"}), PriceTerms)


WRONG: list[Any] = [
    {"kind": "plan"},
    {"kind": "plan", "flat_fee": None},
    {"kind": "plan", "flat_fee": "-1"},
    {"kind": "plan", "flat_fee": "0.0000000000001"},
    {"kind": "plan", "flat_fee": "100000000"},
    {"kind": "plan", "flat_fee": True},
    {"kind": "plan", "minimum_amount": "2", "maximum_amount": "1"},
    {"kind": "plan", "flat_fee": "1", "tiers": []},
    {"kind": "flat", "flat_fee": "1"},
    {"kind": "plan", "included": []},
    {"kind": "plan", "included": {"tokens": "0"}},
    {"kind": "plan", "included": {"tokens": "0.0000001"}},
    {"kind": "plan", "included": {"tokens": None}},
    {"kind": "plan", "included": {"": "1"}},
    {"kind": "plan", "included": {f"m{number}": "1" for number in range(51)}},
]


@pytest.mark.parametrize("document", WRONG, ids=lambda document: str(document)[:50])
def test_what_is_no_terms_of_a_plan_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|have"):
        terms_of(document)


@pytest.mark.parametrize("model", ["plan", PLAN_MODEL, "month"])
def test_the_row_of_a_plans_terms_prices_no_usage(model: str) -> None:
    known = PricedModels.among([PLAN_MODEL, "m*"])
    assert PLAN_MODEL not in known.candidates(model, {"+": None})
    assert not PricedModel.parse(PLAN_MODEL).prices_usage
