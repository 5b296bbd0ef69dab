"""Promise: a unit is billed once, by the most specific meter that has a price, and what was reported can be told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.joins.containment import LISTED, billed_once
from jobs.joins.memory import INCLUDED, REPORTED, Schema
from jobs.usage_entries import ENTRY
from metering.contracts.includes import includes_of, text_of
from metering.meters import Declaration
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE
from traffic.meters import Meter, billed_elsewhere

TREE = {
    "input": None,
    "cached": "input",
    "cached_audio": "cached",
    "written": "input",
    "output": None,
    "thought": "output",
}
"""A meter, and the one that counts its units, too; each adds up the column of its name."""
METERS = tuple(Declaration(name, "token", name, within=whole) for name, whole in TREE.items())
CONVENTION = text_of(includes_of({"input": ["cached", "written"], "cached": ["cached_audio"], "output": ["thought"]}))
KINDS: Schema = {"row": pl.UInt32, "meter": pl.String, "quantity": REPORTED, "version_lsn": pl.Int64}
Entry = tuple[str, Decimal, int | None]


def entries(
    reported: Mapping[str, int | None],
    priced: Mapping[str, int],
    convention: str | None = CONVENTION,
    meters: Sequence[Declaration] = METERS,
) -> set[Entry]:
    """(meter, quantity, version) of one outcome, where each priced meter costs 3 a unit."""
    rows = [
        (0, name, None if quantity is None else Decimal(quantity), priced.get(name) if quantity is not None else None)
        for name, quantity in reported.items()
    ]
    listed = pl.DataFrame(rows, schema=KINDS, orient="row").with_columns(
        unit_price=pl.when(pl.col("version_lsn").is_not_null()).then(3).cast(ENTRY["unit_price"])
    )
    outcomes = pl.DataFrame({INCLUDED: [convention]}, schema={INCLUDED: pl.String})
    found = billed_once(listed.select(LISTED), outcomes, meters)
    for price, version in found.select("unit_price", "version_lsn").iter_rows():
        assert price == (None if version is None else 3 if version > 0 else 0)
    assert found.equals(found.sort("row", "meter", maintain_order=True))
    return set(found.select("meter", "quantity", "version_lsn").iter_rows())


def test_cached_tokens_with_a_price_leave_the_input_tokens() -> None:
    said = {"input": 2006, "cached": 1920, "output": 300}
    assert entries(said, {"input": 1, "cached": 2, "output": 3}) == {
        ("input", Decimal(86), 1),
        ("input", Decimal(1920), BILLED_AS_PART),
        ("cached", Decimal(1920), 2),
        ("output", Decimal(300), 3),
    }


def test_a_part_without_a_price_is_billed_with_the_whole() -> None:
    assert entries({"output": 482, "thought": 448}, {"output": 1}) == {
        ("output", Decimal(482), 1),
        ("thought", Decimal(448), BILLED_IN_WHOLE),
    }


def test_a_source_that_counts_beside_has_both_quantities_billed() -> None:
    said = {"input": 100, "cached": 5000}
    both = {("input", Decimal(100), 1), ("cached", Decimal(5000), 2)}
    assert entries(said, {"input": 1, "cached": 2}, text_of(())) == both
    assert entries(said, {"input": 1, "cached": 2}, None) == both


def test_an_unreported_quantity_is_not_changed() -> None:
    said = {"input": None, "cached": 5, "output": 7, "thought": None}
    assert entries(said, {"cached": 2, "output": 3, "thought": 4}) == {
        ("input", None, None),
        ("cached", Decimal(5), 2),
        ("output", Decimal(7), 3),
        ("thought", None, None),
    }


def test_units_that_a_part_bills_are_not_without_a_price_where_the_whole_has_none() -> None:
    assert entries({"input": 10, "cached": 10}, {"cached": 2}) == {
        ("input", Decimal(10), BILLED_AS_PART),
        ("cached", Decimal(10), 2),
    }


def test_no_quantity_below_0_is_billed_where_parts_are_more_than_the_whole() -> None:
    assert entries({"input": 10, "cached": 8, "written": 8}, {"input": 1, "cached": 2, "written": 3}) == {
        ("input", Decimal(10), BILLED_AS_PART),
        ("cached", Decimal(8), 2),
        ("written", Decimal(8), 3),
    }


def test_an_unmetered_level_is_skipped_when_parts_are_subtracted() -> None:
    meters = (
        Declaration("input", "token", "input"),
        Declaration("cached_audio", "token", "cached_audio", within="input"),
    )
    said, prices = {"input": 100, "cached_audio": 10}, {"input": 1, "cached_audio": 2}
    left = {("input", Decimal(90), 1), ("input", Decimal(10), BILLED_AS_PART), ("cached_audio", Decimal(10), 2)}
    assert entries(said, prices, meters=meters) == left


def test_a_part_leaves_the_whole_though_a_meter_between_them_is_of_other_units() -> None:
    beside_each_other = text_of(includes_of({"input": ["cached", "cached_audio"]}))
    said, prices = {"input": 100, "cached": 40, "cached_audio": 10}, {"input": 1, "cached": 2, "cached_audio": 3}
    assert entries(said, prices, beside_each_other) == {
        ("input", Decimal(50), 1),
        ("input", Decimal(50), BILLED_AS_PART),
        ("cached", Decimal(40), 2),
        ("cached_audio", Decimal(10), 3),
    }


def test_a_part_that_two_meters_add_up_leaves_the_whole_once() -> None:
    names = {"input": ("input", None), "cached": ("cached", "input"), "read": ("cached", "input")}
    meters = [Declaration(name, "token", column, within=whole) for name, (column, whole) in names.items()]
    said, prices = {"input": 100, "cached": 40, "read": 40}, {"input": 1, "cached": 2, "read": 3}
    assert entries(said, prices, meters=meters) == {
        ("input", Decimal(60), 1),
        ("input", Decimal(40), BILLED_AS_PART),
        ("cached", Decimal(40), 2),
        ("read", Decimal(40), 3),
    }


@st.composite
def units(draw: st.DrawFn) -> Counter[str]:
    """How many units have which meter as the innermost that counts them."""
    return Counter({name: draw(st.integers(0, 5)) for name in TREE})


def above(name: str | None) -> list[str]:
    """The meter and all that count its units, from the inside."""
    found = []
    while name is not None:
        found.append(name)
        name = TREE[name]
    return found


@given(units(), st.sets(st.sampled_from(sorted(TREE))))
def test_each_unit_is_billed_by_the_innermost_meter_with_a_price_and_by_no_other(
    innermost: Counter[str], priced: set[str]
) -> None:
    reported: dict[str, int | None] = dict.fromkeys(TREE, 0)
    must: defaultdict[str, int] = defaultdict(int)
    for inner, count in innermost.items():
        for name in above(inner):
            reported[name] = (reported[name] or 0) + count
        payer = next((name for name in above(inner) if name in priced), None)
        must[payer or ""] += count
    found = entries(reported, dict.fromkeys(priced, 7))
    billed = {name: sum(q for meter, q, version in found if meter == name and version == 7) for name in TREE}
    assert billed == {name: must[name] for name in TREE}
    # Reported is the sum of a meter's entries, and what nobody prices is said once.
    assert {name: sum(q for meter, q, _ in found if meter == name) for name in TREE} == reported
    assert sum(quantity for _, quantity, version in found if version is None) == must[""]


@given(units(), st.sets(st.sampled_from(sorted(TREE))))
def test_the_expected_bills_of_generated_traffic_subtract_the_same_parts(
    innermost: Counter[str], priced: set[str]
) -> None:
    columns = {
        "input": "input_tokens",
        "cached": "cached_tokens",
        "output": "output_tokens",
        "thought": "reasoning_tokens",
    }
    meters = [Meter(name, column, within=TREE[name]) for name, column in columns.items()]
    reported = {name: sum(n for inner, n in innermost.items() if name in above(inner)) for name in columns}
    priced &= columns.keys()
    found = entries(reported, dict.fromkeys(priced, 7))
    elsewhere = {
        name: sum(q for meter, q, version in found if meter == name and version is not None and version <= 0)
        for name in columns
    }
    truth = billed_elsewhere(meters, reported, priced)
    assert elsewhere == {name: truth.get(name, 0) for name in columns}


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ([], "is an object"),
        ({"a": "b"}, "is a list of columns"),
        ({"a": ["c"], "b": ["c"]}, "c in a and in b"),
        ({"a": ["c", "c"]}, "c in a and in a"),
        ({"a": ["b"], "b": ["a"]}, "within itself"),
        ({"a": ["a"]}, "within itself"),
        ({"A b": ["c"]}, "names columns"),
        ({"a": [1]}, "names columns"),
        ({"a": [f"c{n}" for n in range(51)]}, "at most 50"),
    ],
)
def test_an_invalid_convention_is_refused_with_a_sentence(given_: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        includes_of(given_)
