"""Measures merged from panes in any cut, against all values at once: numbers equal, sketches within their error."""

from __future__ import annotations

import base64
import random
from collections import Counter
from decimal import Context, Decimal
from functools import reduce

import pytest
from datasketches import (  # type: ignore[import-untyped]
    frequent_strings_sketch,
    hll_sketch,
    kll_doubles_sketch,
    tgt_hll_type,
)
from hypothesis import given
from hypothesis import strategies as st

from jobs.view_measures import KLL_RANK_ERROR, LG_HLL, LG_TOP, TOP_ITEMS, merged, shown
from metering.views import RANKS, Aggregate, Measure

SETS = 200
STANDARD_ERROR = 0.0171
"""As the guide says it of a distinct count."""
N, TOTAL, LEAST, GREATEST = (
    Measure(name, aggregate, "x")
    for name, aggregate in (("n", Aggregate.COUNT), ("s", Aggregate.SUM), ("lo", Aggregate.MIN), ("hi", Aggregate.MAX))
)
USERS, LATENCY, TOP = (
    Measure("u", Aggregate.DISTINCT, "x"),
    Measure("p", Aggregate.PERCENTILES, "x"),
    Measure("t", Aggregate.TOP, "x", k=3),
)
numbers = st.decimals(-(10**30), 10**30, places=6)


def written(sketch: bytes) -> str:
    return base64.b64encode(sketch).decode()


def cut(chance: random.Random, values: list[float]) -> list[list[float]]:
    borders = sorted(chance.sample(range(len(values) + 1), min(len(values), chance.randint(0, 12))))
    return [values[a:b] for a, b in zip([0, *borders], [*borders, len(values)], strict=True)]


def distinct(values: list[float]) -> dict[str, str]:
    sketch = hll_sketch(LG_HLL, tgt_hll_type.HLL_8)
    for value in values:
        sketch.update(str(value))
    return {"u": written(sketch.serialize_updatable())}


def percentiles(values: list[float]) -> dict[str, str]:
    sketch = kll_doubles_sketch(200)
    for value in values:
        sketch.update(value)
    return {"p": written(sketch.serialize())}


def top(values: list[str]) -> dict[str, str]:
    sketch = frequent_strings_sketch(LG_TOP)
    for value in values:
        sketch.update(value)
    return {"t": written(sketch.serialize())}


@given(st.lists(st.lists(numbers, min_size=1), min_size=1))
def test_numbers_of_panes_add_up_to_the_digit(panes: list[list[Decimal]]) -> None:
    def total(values: list[Decimal]) -> Decimal:
        return reduce(Context(prec=60).add, values)

    stored = [
        {"n": str(len(pane)), "s": f"{total(pane):f}", "lo": f"{min(pane):f}", "hi": f"{max(pane):f}"} for pane in panes
    ]
    found = merged([N, TOTAL, LEAST, GREATEST], stored)
    values = [value for pane in panes for value in pane]
    assert shown(N, found["n"]) == len(values)
    assert shown(TOTAL, found["s"]) == total(values)
    assert (shown(LEAST, found["lo"]), shown(GREATEST, found["hi"])) == (min(values), max(values))


def test_sketches_are_within_their_stated_error_over_random_sets() -> None:
    """200 sets, cut anywhere: of distinct counts nearly all within three standard errors, and their mean error is none;
    of percentiles 99 of 100 ranks within the error of one sketch of all values.
    """
    chance = random.Random(36)
    errors, far = list[float](), 0
    for _ in range(SETS):
        values = [float(chance.randrange(chance.choice([50, 5_000, 10**9]))) for _ in range(chance.randint(1, 6_000))]
        panes = cut(chance, values)
        exact = len(set(values))
        estimate = shown(USERS, merged([USERS], map(distinct, panes))["u"])
        errors.append((estimate - exact) / exact)
        found = shown(LATENCY, merged([LATENCY], (percentiles(pane) for pane in panes))["p"])
        ordered = sorted(values)
        for name, rank in RANKS.items():
            below = sum(value < found[name] for value in ordered) / len(ordered)
            at_most = sum(value <= found[name] for value in ordered) / len(ordered)
            far += not below - KLL_RANK_ERROR <= rank <= at_most + KLL_RANK_ERROR
    assert sum(abs(error) > 3 * STANDARD_ERROR for error in errors) <= SETS // 50
    assert abs(sum(errors) / SETS) < STANDARD_ERROR / 2
    assert far <= SETS * len(RANKS) // 100


@pytest.mark.parametrize("seed", range(10))
def test_a_top_of_few_values_is_exact_in_any_cut(seed: int) -> None:
    chance = random.Random(seed)
    values = [f"v{chance.randrange(chance.choice([5, TOP_ITEMS]))}" for _ in range(3_000)]
    parts = [values[a::7] for a in range(7)]
    counts = Counter(values)
    found = shown(TOP, merged([TOP], map(top, parts))["t"])
    assert [one["count"] for one in found] == sorted(counts.values(), reverse=True)[:3]
    assert all(counts[one["value"]] == one["count"] for one in found)


def test_nothing_to_measure_is_no_number_but_a_count_of_none() -> None:
    assert merged([N, TOTAL, USERS], [{}, {}]) == {}
    assert [shown(measure, None) for measure in (N, USERS, TOTAL, GREATEST, LATENCY, TOP)] == [
        0,
        0,
        None,
        None,
        None,
        [],
    ]
    assert shown(LATENCY, percentiles([])["p"]) is None
