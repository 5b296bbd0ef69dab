"""Tiers and packages: exact functions of the month total, compared with an oracle in fractions.

The oracle prices each part of a ladder from the definition: it walks along the total in the steps at which any price
changes, and asks for each step what one unit costs there. It shares no code with `metering.price_tiers`.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.price_tiers import Kind, PriceTerms, TierLine
from tests.specifications.pricing import usual_unit_price

PRICES = st.one_of(st.just(Decimal(0)), st.decimals(0, Decimal(99999999), places=12), st.decimals(0, 1, places=3))
BOUNDS = st.one_of(st.decimals(Decimal("0.000001"), 10**12, places=6), st.integers(1, 50).map(Decimal))


@st.composite
def tier_documents(draw: st.DrawFn) -> dict[str, Any]:
    bounds = sorted(draw(st.sets(BOUNDS, max_size=6)))
    tiers = [
        {
            **({} if bound is None else {"up_to": f"{bound:f}"}),
            "unit_price": f"{draw(PRICES):f}",
            "flat_price": f"{draw(PRICES):f}",
        }
        for bound in [*bounds, None]
    ]
    return {"kind": draw(st.sampled_from(["graduated", "volume"])), "tiers": tiers}


package_documents = st.builds(
    lambda size, price: {"kind": "package", "package_size": f"{size:f}", "package_price": f"{price:f}"}, BOUNDS, PRICES
)
documents = st.one_of(tier_documents(), package_documents)
quantities = st.lists(st.one_of(BOUNDS, st.integers(1, 60).map(Decimal)), min_size=1, max_size=4)
parts_of_any_sign = st.lists(
    st.tuples(st.one_of(BOUNDS, st.integers(1, 60).map(Decimal)), st.booleans()).map(
        lambda part: part[0].copy_negate() if part[1] else part[0]
    ),
    min_size=1,
    max_size=5,
)


def oracle(
    document: dict[str, Any], start: Fraction, end: Fraction, total: Fraction, is_last: bool | None = None
) -> Fraction:
    """What the units after `start` up to `end` cost, where the month has `total`; what they give back from the end down
    to the start, where that is above it. `is_last` None: the part that ends at the total is.
    """
    is_last = end == total if is_last is None else is_last
    if end < start:
        flat = 0 if document["kind"] != "volume" or not is_last else _volume_flat(document, total)
        return flat - oracle(document, end, start, total, is_last=False)
    if document["kind"] == "package":
        size, price = Fraction(document["package_size"]), Fraction(document["package_price"])
        # -(-a // b) is the next whole number.
        return (-(-end // size) - -(-start // size)) * price
    bounds = [Fraction(0), *(Fraction(tier["up_to"]) for tier in document["tiers"] if "up_to" in tier)]
    units = [Fraction(tier["unit_price"]) for tier in document["tiers"]]
    flats = [Fraction(tier["flat_price"]) for tier in document["tiers"]]
    if document["kind"] == "volume":
        of_total = max(sum(bound < total for bound in bounds) - 1, 0)
        return (end - start) * units[of_total] + (_volume_flat(document, total) if is_last else 0)
    steps = sorted({start, end, *(bound for bound in bounds if start < bound < end)})
    costs = Fraction(0)
    for low, high in pairwise(steps):
        costs += (high - low) * units[max(sum(bound <= low for bound in bounds) - 1, 0)]
    # A tier is entered by the first unit above its lower bound.
    return costs + sum(flat for bound, flat in zip(bounds, flats, strict=True) if start <= bound < end)


def _volume_flat(document: dict[str, Any], total: Fraction) -> Fraction:
    """The flat price of the tier of the total; of nothing, or less, there is none."""
    if total <= 0:
        return Fraction(0)
    bounds = [Fraction(0), *(Fraction(tier["up_to"]) for tier in document["tiers"] if "up_to" in tier)]
    return Fraction(document["tiers"][sum(bound < total for bound in bounds) - 1]["flat_price"])


def priced(terms: PriceTerms, parts: list[Decimal]) -> list[tuple[Decimal, Decimal, list[TierLine]]]:
    """The start, end and lines of each part of a ladder."""
    ends = list(accumulate(parts))
    return [
        (start, end, list(terms.lines(start, end, ends[-1], is_last=place == len(ends))))
        for place, (start, end) in enumerate(zip([Decimal(0), *ends], ends, strict=False), start=1)
    ]


@given(documents, parts_of_any_sign)
def test_each_version_prices_the_units_on_its_part_of_the_ladder(
    document: dict[str, Any], parts: list[Decimal]
) -> None:
    terms = PriceTerms.of(document)
    every = priced(terms, parts)
    total = Fraction(sum(map(Fraction, parts)))
    for place, (start, end, lines) in enumerate(every, start=1):
        amount = sum((Fraction(line.amount) for line in lines), Fraction(0))
        assert amount == oracle(document, Fraction(start), Fraction(end), total, place == len(every))
        assert sum((Fraction(line.quantity) for line in lines), Fraction(0)) == Fraction(end) - Fraction(start)


@given(documents, parts_of_any_sign)
def test_a_ladder_of_one_price_costs_what_its_total_costs_however_versions_split_it(
    document: dict[str, Any], parts: list[Decimal]
) -> None:
    terms = PriceTerms.of(document)
    split = [line.amount for _, _, lines in priced(terms, parts) for line in lines]
    total = sum(parts, Decimal(0))
    whole = [line.amount for line in terms.lines(Decimal(0), total, total, is_last=True)] if total else []
    assert sum(map(Fraction, split)) == sum(map(Fraction, whole))


@given(tier_documents(), quantities)
def test_the_amount_of_a_line_is_its_quantity_times_its_unit_price_and_the_flat_price_of_its_tier(
    document: dict[str, Any], parts: list[Decimal]
) -> None:
    for line in PriceTerms.of(document).lines(Decimal(0), sum(parts, Decimal(0)), sum(parts, Decimal(0)), is_last=True):
        number = int(line.tier.partition(":")[0])
        assert line.unit_price is not None
        product = Fraction(line.quantity) * Fraction(line.unit_price)
        assert Fraction(line.amount) - product == Fraction(document["tiers"][number - 1]["flat_price"])


@given(documents)
def test_terms_have_one_text(document: dict[str, Any]) -> None:
    terms = PriceTerms.of(document)
    assert PriceTerms.parse(terms.text) == terms
    assert PriceTerms.parse(terms.text).text == terms.text


@pytest.mark.parametrize(
    ("kind", "total", "tiers", "amount"),
    [
        # A million at 2, the next four millions at 1, the rest at 0.5; each "up to and including".
        ("graduated", "1000000", ["1: up to 1000000"], "2000000"),
        ("graduated", "1000001", ["1: up to 1000000", "2: up to 5000000"], "2000001"),
        ("graduated", "6000000", ["1: up to 1000000", "2: up to 5000000", "3: above 5000000"], "6500000"),
        ("volume", "1000000", ["1: up to 1000000"], "2000000"),
        ("volume", "1000001", ["2: up to 5000000"], "1000001"),
        ("volume", "5000001", ["3: above 5000000"], "2500000.5"),
    ],
)
def test_a_tier_goes_up_to_and_includes_its_bound(kind: str, total: str, tiers: list[str], amount: str) -> None:
    terms = PriceTerms.of(
        {
            "kind": kind,
            "tiers": [
                {"up_to": "1000000", "unit_price": "2"},
                {"up_to": "5000000", "unit_price": "1"},
                {"unit_price": "0.5"},
            ],
        }
    )
    lines = terms.lines(Decimal(0), Decimal(total), Decimal(total), is_last=True)
    assert [line.tier for line in lines] == tiers
    assert sum((line.amount for line in lines), Decimal(0)) == Decimal(amount)


@pytest.mark.parametrize(("total", "amount"), [("0.000001", "3"), ("1000", "3"), ("1000.000001", "6"), ("2001", "9")])
def test_a_package_that_is_opened_is_paid(total: str, amount: str) -> None:
    terms = PriceTerms.of({"kind": "package", "package_size": "1000", "package_price": "3"})
    (line,) = terms.lines(Decimal(0), Decimal(total), Decimal(total), is_last=True)
    assert (line.tier, line.unit_price, line.amount) == ("packages of 1000", None, Decimal(amount))


@given(documents, BOUNDS)
def test_the_price_of_the_next_unit_is_that_of_the_tier_which_it_reaches(
    document: dict[str, Any], total: Decimal
) -> None:
    terms, step = PriceTerms.of(document), Fraction(1, 10**9)
    found, so_far = Fraction(terms.next_unit_price(total)), Fraction(total)
    if document["kind"] == "package":
        assert found == oracle(document, so_far, so_far + step, so_far + step)
        return
    for tier in document["tiers"]:
        tier["flat_price"] = "0"
    assert found == oracle(document, so_far, so_far + step, so_far + step) / step


@given(documents)
def test_the_price_to_compare_with_has_at_most_12_decimals_and_is_never_above_the_dearest(
    document: dict[str, Any],
) -> None:
    usual = usual_unit_price(PriceTerms.of(document))
    assert Decimal(-12) <= int(usual.as_tuple().exponent)
    if document["kind"] == "package":
        exact = Fraction(document["package_price"]) / Fraction(document["package_size"])
        assert 0 <= exact - Fraction(usual) < Fraction(1, 10**12)
    else:
        assert str(usual) == "0" or Fraction(usual) in {Fraction(tier["unit_price"]) for tier in document["tiers"]}


@pytest.mark.parametrize(("total", "amount"), [("-1", "0"), ("-999.999999", "0"), ("-1000", "-3"), ("-2001", "-6")])
def test_less_than_nothing_takes_back_full_packages_alone(total: str, amount: str) -> None:
    terms = PriceTerms.of({"kind": "package", "package_size": "1000", "package_price": "3"})
    (line,) = terms.lines(Decimal(0), Decimal(total), Decimal(total), is_last=True)
    assert (line.quantity, line.amount) == (Decimal(total), Decimal(amount))


@pytest.mark.parametrize("kind", ["graduated", "volume"])
def test_less_than_nothing_is_taken_back_at_the_first_tier_without_its_flat_price(kind: str) -> None:
    tiers = [{"up_to": "10", "unit_price": "2", "flat_price": "7"}, {"unit_price": "1", "flat_price": "9"}]
    terms = PriceTerms.of({"kind": kind, "tiers": tiers})
    (line,) = terms.lines(Decimal(0), Decimal(-4), Decimal(-4), is_last=True)
    assert line.tier == "1: up to 10"
    assert (line.quantity, line.amount) == (Decimal(-4), Decimal(-8))


@pytest.mark.parametrize("part", [(0, 0, 1), (1, 1, 1)])
def test_what_is_no_part_of_a_ladder_is_refused(part: tuple[int, int, int]) -> None:
    terms = PriceTerms.of({"kind": "volume", "tiers": [{"unit_price": "1"}]})
    with pytest.raises(ValueError, match="no part of a ladder"):
        terms.lines(*map(Decimal, part), is_last=True)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be a JSON object with kind"),
        ({"kind": "unit"}, "kind is 'unit': must be graduated, volume or package"),
        ({"kind": "graduated"}, "tiers must be a list of 1 to 100"),
        ({"kind": "graduated", "tiers": []}, "tiers must be a list of 1 to 100"),
        ({"kind": "graduated", "tiers": [{"unit_price": 1}] * 101}, "tiers must be a list of 1 to 100"),
        ({"kind": "volume", "tiers": [{"up_to": 5, "unit_price": 1}]}, "tiers.0.up_to must be left out or null"),
        ({"kind": "volume", "tiers": [{"unit_price": 1}, {"unit_price": 1}]}, "tiers.0.up_to is missing"),
        (
            {"kind": "volume", "tiers": [{"up_to": 5, "unit_price": 1}, {"up_to": 5, "unit_price": 1}, {}]},
            "tiers.1.up_to is 5: must be more than 5",
        ),
        ({"kind": "volume", "tiers": [{}]}, "tiers.0.unit_price must be a decimal number"),
        ({"kind": "volume", "tiers": [{"unit_price": 1.5}]}, "tiers.0.unit_price must be a decimal number"),
        ({"kind": "volume", "tiers": [{"unit_price": "-1"}]}, "tiers.0.unit_price is '-1'"),
        ({"kind": "volume", "tiers": [{"unit_price": "NaN"}]}, "tiers.0.unit_price is 'NaN'"),
        ({"kind": "volume", "tiers": [{"unit_price": "0.0000000000001"}]}, "at most 12 decimals"),
        ({"kind": "volume", "tiers": [{"unit_price": "100000000"}]}, "must be less than 100000000"),
        ({"kind": "volume", "tiers": [{"unit_price": 1, "per": 5}]}, "tiers.0 has per"),
        ({"kind": "package", "package_size": 0, "package_price": 1}, "package_size must be more than 0"),
        ({"kind": "package", "package_size": 1, "package_price": 1, "tiers": []}, "package has tiers"),
        ({"kind": "package", "package_size": "0.0000001", "package_price": 1}, "at most 6 decimals"),
    ],
)
def test_terms_that_are_no_price_are_refused_with_what_to_do(document: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^.*" + message.replace(".", r"\.")):
        PriceTerms.of(document)


def test_every_kind_but_that_of_a_unit_has_terms() -> None:
    assert {Kind(kind) for kind in ("graduated", "volume", "package")} == set(Kind) - {Kind.UNIT}
