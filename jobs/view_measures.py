"""Measures of views as panes store them: how two are merged, and what a reader sees.

Numbers are decimals written as texts. Sketches are those of Apache DataSketches in Base64, which Spark writes and
Python reads; the times of which gaps are made are `ArrivalTimes`.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from datasketches import (  # type: ignore[import-untyped]
    frequent_items_error_type,
    frequent_strings_sketch,
    hll_sketch,
    hll_union,
    kll_doubles_sketch,
    tgt_hll_type,
)
from numpy.typing import NDArray

from jobs.arrival_times import ArrivalTimes
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


class Accumulator(Protocol):
    """A measure of a pane in memory: parts are added to it, and it is stored."""

    def add(self, part: Any, /) -> None:
        """Add what another pane has stored, or to a sketch values of outcomes: a list of texts, an array of numbers."""

    def stored(self) -> Stored:
        """What a pane stores of it."""


def accumulator(aggregate: Aggregate) -> Accumulator:
    """One to which nothing was added. A number is stored only after something was."""
    return _ACCUMULATORS[aggregate]()


def merged(measures: Iterable[Measure], panes: Iterable[Mapping[str, Stored]]) -> dict[str, Stored]:
    """Several panes of the same keys as one; a measure that none of them has is left out."""
    listed = list(panes)
    found = {}
    for measure in measures:
        if values := [pane[measure.name] for pane in listed if measure.name in pane]:
            found[measure.name] = values[0] if len(values) == 1 else _merged(measure.aggregate, values)
    return found


def _merged(aggregate: Aggregate, values: Iterable[Stored]) -> Stored:
    found = accumulator(aggregate)
    for value in values:
        found.add(value)
    return found.stored()


def written(measures: Mapping[str, Stored]) -> str:
    """Measures as the JSON object of a pane: digits and Base64 need no escapes, which would be looked for in each."""
    listed = ", ".join(f'{_name(name)}: "{value}"' for name, value in measures.items())
    return f"{{{listed}}}"


@lru_cache(maxsize=1_024)
def _name(name: str) -> str:
    return json.dumps(name)


def shown(measure: Measure, stored: Stored | None) -> Any:
    """What a reader sees: a whole number or a Decimal, {p50, p90, p95, p99}, or a list of {value, count}.

    Null where there was nothing to measure; a count is 0 then.
    """
    if stored is None:
        return {Aggregate.COUNT: 0, Aggregate.DISTINCT: 0, Aggregate.TOP: []}.get(measure.aggregate)
    return _SHOWN[measure.aggregate](measure, stored)


class _Number:
    """A sum, or the least or the greatest number."""

    __slots__ = ("_choose", "_number")

    def __init__(self, choose: Callable[[Decimal, Decimal], Decimal]) -> None:
        self._choose = choose
        self._number: Decimal | None = None

    def add(self, part: Stored) -> None:
        number = Decimal(part)
        self._number = number if self._number is None else self._choose(self._number, number)

    def stored(self) -> Stored:
        return f"{self._number:f}"


class _Distinct:
    """How many different texts there are, hashed as Spark's `hll_sketch_agg` does."""

    __slots__ = ("_union",)

    def __init__(self) -> None:
        self._union = hll_union(LG_HLL)

    def add(self, part: Stored | list[str]) -> None:
        if isinstance(part, str):
            self._union.update(hll_sketch.deserialize(_bytes(part)))
            return
        update = self._union.update
        for value in part:
            update(value)

    def stored(self) -> Stored:
        # Compact: of few texts it is half as long, and all that merge it read both.
        return _written(self._union.get_result(tgt_hll_type.HLL_8).serialize_compact())


class _Percentiles:
    """Percentiles of numbers, as of Spark's `kll_sketch_agg_double`."""

    __slots__ = ("_sketch",)

    def __init__(self) -> None:
        self._sketch = kll_doubles_sketch()

    def add(self, part: Stored | NDArray[np.float64]) -> None:
        if not isinstance(part, str):
            if len(part):
                self._sketch.update(part)
        elif self._sketch.is_empty():
            self._sketch = kll_doubles_sketch.deserialize(_bytes(part))
        else:
            self._sketch.merge(kll_doubles_sketch.deserialize(_bytes(part)))

    def stored(self) -> Stored:
        return _written(self._sketch.serialize())


class _Top:
    """The most frequent texts, as of Spark's `approx_top_k_accumulate` of TOP_ITEMS."""

    __slots__ = ("_sketch",)

    def __init__(self) -> None:
        self._sketch = frequent_strings_sketch(LG_TOP)

    def add(self, part: Stored | list[str]) -> None:
        if isinstance(part, str):
            self._sketch.merge(_frequent(part))
            return
        update = self._sketch.update
        for value in part:
            update(value)

    def stored(self) -> Stored:
        return _written(self._sketch.serialize())


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


def _between(_measure: Measure, stored: Stored) -> dict[str, float] | None:
    found = ArrivalTimes()
    found.add(stored)
    return found.percentiles_ms(RANKS)


def _top_values(measure: Measure, stored: Stored) -> list[dict[str, Any]]:
    listed = _frequent(stored).get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES)
    ordered = sorted(((value, count) for value, count, *_ in listed), key=lambda found: (-found[1], found[0]))
    return [{"value": value, "count": count} for value, count in ordered[: measure.k]]


_ACCUMULATORS: Mapping[Aggregate, Callable[[], Accumulator]] = {
    Aggregate.COUNT: partial(_Number, _EXACT.add),
    Aggregate.SUM: partial(_Number, _EXACT.add),
    Aggregate.MIN: partial(_Number, min),
    Aggregate.MAX: partial(_Number, max),
    Aggregate.DISTINCT: _Distinct,
    Aggregate.PERCENTILES: _Percentiles,
    Aggregate.TOP: _Top,
    Aggregate.GAPS: ArrivalTimes,
}
_SHOWN: Mapping[Aggregate, Callable[[Measure, Stored], Any]] = {
    Aggregate.COUNT: _number,
    Aggregate.SUM: _number,
    Aggregate.MIN: _number,
    Aggregate.MAX: _number,
    Aggregate.DISTINCT: _estimate,
    Aggregate.PERCENTILES: _quantiles,
    Aggregate.TOP: _top_values,
    Aggregate.GAPS: _between,
}
