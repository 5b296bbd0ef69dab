"""Measures of views as panes store them: how two are merged, and what a reader sees.

Numbers are decimals written as texts. Sketches are those of Apache DataSketches in Base64, which Spark writes and
Python reads.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from datasketches import (  # type: ignore[import-untyped]
    PyStringsSerDe,
    frequent_items_error_type,
    frequent_strings_sketch,
    hll_sketch,
    hll_union,
    kll_doubles_sketch,
    tgt_hll_type,
)
from numpy.typing import NDArray

from metering.views import RANKS, Aggregate, Measure

LG_HLL = 12
"""4,096 registers: the standard error of a distinct count is 1.7 %, so nearly all are within 5 %."""
KLL_RANK_ERROR = 0.0133
"""Of a sketch with k = 200: the rank of a percentile is off by less than that in 99 of 100 cases."""
TOP_ITEMS = 1_000
"""How many values a top follows: while a window has no more of them, its counts are exact."""
LG_TOP = 11

Stored = str
"""A measure in a pane: a number as text, or a sketch in Base64."""
_EXACT = Context(prec=60)
_TEXTS = PyStringsSerDe()


def merged(measures: Iterable[Measure], panes: Iterable[Mapping[str, Stored]]) -> dict[str, Stored]:
    """Several panes of the same keys as one; a measure that none of them has is left out."""
    listed = list(panes)
    found = {}
    for measure in measures:
        if values := [pane[measure.name] for pane in listed if measure.name in pane]:
            found[measure.name] = values[0] if len(values) == 1 else _MERGES[measure.aggregate](values)
    return found


def written(measures: Mapping[str, Stored]) -> str:
    """Measures as the JSON object of a pane: digits and Base64 need no escapes, which would be looked for in each."""
    listed = ", ".join(f'{_name(name)}: "{value}"' for name, value in measures.items())
    return f"{{{listed}}}"


@lru_cache(maxsize=1_024)
def _name(name: str) -> str:
    return json.dumps(name)


def distinct_of(values: Iterable[str]) -> Stored:
    """How many different texts there are, as Spark's `hll_sketch_agg` stores it."""
    sketch = hll_sketch(LG_HLL, tgt_hll_type.HLL_8)
    for value in values:
        sketch.update(value)
    return _written(sketch.serialize_updatable())


def percentiles_of(values: NDArray[np.float64]) -> Stored:
    """Percentiles of numbers, as Spark's `kll_sketch_agg_double` stores them."""
    sketch = kll_doubles_sketch()
    if len(values):
        sketch.update(values)
    return _written(sketch.serialize())


def top_of(values: Iterable[str]) -> Stored:
    """The most frequent texts, as Spark's `approx_top_k_accumulate` of TOP_ITEMS stores them."""
    sketch = frequent_strings_sketch(LG_TOP)
    for value in values:
        sketch.update(value)
    return _written(sketch.serialize())


def shown(measure: Measure, stored: Stored | None) -> Any:
    """What a reader sees: a whole number or a Decimal, {p50, p90, p95, p99}, or a list of {value, count}.

    Null where there was nothing to measure; a count is 0 then.
    """
    if stored is None:
        return {Aggregate.COUNT: 0, Aggregate.DISTINCT: 0, Aggregate.TOP: []}.get(measure.aggregate)
    return _SHOWN[measure.aggregate](measure, stored)


def _sum(values: list[Stored]) -> Stored:
    return f"{reduce(_EXACT.add, map(Decimal, values)):f}"


def _union(values: list[Stored]) -> Stored:
    union = hll_union(LG_HLL)
    for value in values:
        union.update(hll_sketch.deserialize(_bytes(value)))
    return _written(union.get_result(tgt_hll_type.HLL_8).serialize_updatable())


def _kll(values: list[Stored]) -> Stored:
    first, *others = (kll_doubles_sketch.deserialize(_bytes(value)) for value in values)
    for other in others:
        first.merge(other)
    return _written(first.serialize())


def _top(values: list[Stored]) -> Stored:
    union = frequent_strings_sketch(LG_TOP)
    for value in values:
        union.merge(_frequent(value))
    return _written(union.serialize())


def _frequent(value: Stored) -> frequent_strings_sketch:
    return frequent_strings_sketch.deserialize(_bytes(value))


def _bytes(value: Stored) -> bytes:
    return a2b_base64(value)


def _written(sketch: bytes) -> Stored:
    return b2a_base64(sketch, newline=False).decode()


def _number(_measure: Measure, stored: Stored) -> int | Decimal:
    number = Decimal(stored)
    return int(number) if number == number.to_integral_value() else number.normalize(_EXACT)


def _estimate(_measure: Measure, stored: Stored) -> int:
    return int(hll_sketch.deserialize(_bytes(stored)).get_estimate() + 0.5)


def _quantiles(_measure: Measure, stored: Stored) -> dict[str, float] | None:
    # Inclusive: the least value that at least so many are not above, the nearest rank.
    sketch = kll_doubles_sketch.deserialize(_bytes(stored))
    return (
        None if sketch.is_empty() else {name: sketch.get_quantile(rank, inclusive=True) for name, rank in RANKS.items()}
    )


def _top_values(measure: Measure, stored: Stored) -> list[dict[str, Any]]:
    listed = _frequent(stored).get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES)
    ordered = sorted(((value, count) for value, count, *_ in listed), key=lambda found: (-found[1], found[0]))
    return [{"value": value, "count": count} for value, count in ordered[: measure.k]]


_MERGES: Mapping[Aggregate, Callable[[list[Stored]], Stored]] = {
    Aggregate.COUNT: _sum,
    Aggregate.SUM: _sum,
    Aggregate.MIN: lambda values: min(values, key=Decimal),
    Aggregate.MAX: lambda values: max(values, key=Decimal),
    Aggregate.DISTINCT: _union,
    Aggregate.PERCENTILES: _kll,
    Aggregate.TOP: _top,
}
_SHOWN: Mapping[Aggregate, Callable[[Measure, Stored], Any]] = {
    Aggregate.COUNT: _number,
    Aggregate.SUM: _number,
    Aggregate.MIN: _number,
    Aggregate.MAX: _number,
    Aggregate.DISTINCT: _estimate,
    Aggregate.PERCENTILES: _quantiles,
    Aggregate.TOP: _top_values,
}
