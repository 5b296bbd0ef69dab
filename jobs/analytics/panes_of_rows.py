"""The same as `panes` for outcomes that the driver has: a job of Spark cost more than all sketches of a batch.

Values go as they are into the sketches of `view_measures`, which hash as Spark's do. A column whose values each library
casts to another last digit is left to Spark (`can_measure`). `tests/pipelines/test_panes_of_rows.py` has both do the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from jobs.analytics.newest_panes import AddedPane
from jobs.analytics.panes import text
from jobs.arrival_times import MICROSECONDS
from jobs.view_measures import Stored
from metering.meters import QUANTITY_DECIMALS
from metering.views import Aggregate, Measure, View

MINUTE = "#minute"
"""No column has such a name; nor `#` and a number, by which measures are named."""
NUMBERS = (Aggregate.SUM, Aggregate.MIN, Aggregate.MAX)


def can_measure(view: View, schema: pa.Schema) -> bool:
    """Whether all that the view reads of outcomes is cast here as Spark casts it."""
    kinds = pl.DataFrame(schema.empty_table()).schema
    texts = {*view.by, *(column for measure in view.measures for column, _ in measure.where)}
    return all(_is_text(kinds[column]) for column in texts) and all(
        _is_measured(measure.aggregate, kinds[measure.column]) for measure in view.measures if measure.column
    )


def _is_text(kind: pl.DataType) -> bool:
    return kind.is_integer() or kind in (pl.String, pl.Boolean)


def _is_measured(aggregate: Aggregate, kind: pl.DataType) -> bool:
    if aggregate in NUMBERS:
        return kind.is_integer()
    if aggregate is Aggregate.PERCENTILES:
        return kind.is_integer() or kind.is_float()
    return _is_text(kind)


def panes_of_rows(outcomes: pl.DataFrame | pa.Table, view: View) -> Iterator[AddedPane]:
    """Outcomes (event_time, the view's columns) → what they add to panes of the view."""
    minute = pl.col("event_time").dt.convert_time_zone("UTC").dt.truncate("1m").alias(MINUTE)
    keys = [pl.col(key).cast(pl.String).alias(f"{place}") for place, key in enumerate(view.by)]
    found = (
        pl.DataFrame(outcomes)
        .filter(pl.col("event_time").is_not_null())
        .group_by(minute, *keys, maintain_order=True)
        .agg(_taken(measure).alias(f"#{place}") for place, measure in enumerate(view.measures))
    )
    minutes = (found[MINUTE].dt.epoch("us") // MICROSECONDS).to_list()
    listed = found.select([key.meta.output_name() for key in keys]).rows() if keys else [()] * len(found)
    parts = (_PARTS[measure.aggregate](found[f"#{place}"]) for place, measure in enumerate(view.measures))
    rows = zip(*parts, strict=True) if view.measures else iter([()] * len(found))
    name, version = view.name, view.version
    return (AddedPane(name, version, *of_pane) for of_pane in zip(minutes, listed, rows, strict=True))


def _taken(measure: Measure) -> pl.Expr:
    """Of a pane: a count, a number, or the values of a sketch in the order of the outcomes."""
    conditions = [
        pl.col(column).cast(pl.String).is_in([text(value) for value in values]).fill_null(value=False)
        for column, values in measure.where
    ]
    is_taken = reduce(pl.Expr.and_, conditions, pl.lit(value=True))
    if measure.aggregate is Aggregate.COUNT:
        return is_taken.sum() if conditions else pl.len()
    column = pl.col("event_time").dt.epoch("us") if measure.column is None else pl.col(measure.column)
    values = column.filter(is_taken & column.is_not_null())
    match measure.aggregate:
        case Aggregate.SUM:
            # Of no value null, as of SQL; no sum of so few is too large.
            return pl.when(values.len() > 0).then(values.cast(pl.Int128).sum())
        case Aggregate.MIN:
            return values.min()
        case Aggregate.MAX:
            return values.max()
        case Aggregate.PERCENTILES:
            return values.cast(pl.Float64)
    return values if measure.aggregate is Aggregate.GAPS else values.cast(pl.String)


def _counts(found: pl.Series) -> Iterator[Stored | None]:
    return map(str, found.to_list())


def _numbers(found: pl.Series) -> Iterator[Stored | None]:
    for number in found.to_list():
        yield None if number is None else f"{number}.{'0' * QUANTITY_DECIMALS}"


def _texts(found: pl.Series) -> Iterator[list[str]]:
    values, ends = _flat(found)
    listed, begin = values.to_list(), 0
    for end in ends:
        yield listed[begin:end]
        begin = end


def _reals(found: pl.Series) -> Iterator[NDArray[np.float64]]:
    values, ends = _flat(found)
    array, begin = values.to_numpy(writable=True), 0
    for end in ends:
        yield array[begin:end]
        begin = end


def _whole(found: pl.Series) -> Iterator[NDArray[np.int64]]:
    values, ends = _flat(found)
    array, begin = values.to_numpy(), 0
    for end in ends:
        yield array[begin:end]
        begin = end


def _flat(found: pl.Series) -> tuple[pl.Series, list[int]]:
    """Lists as one series, and where each of them ends in it."""
    lengths = found.list.len()
    return found.filter(lengths > 0).explode(), lengths.cast(pl.Int64).cum_sum().to_list()


_PARTS: Mapping[Aggregate, Callable[[pl.Series], Iterator[Any]]] = {
    Aggregate.COUNT: _counts,
    Aggregate.SUM: _numbers,
    Aggregate.MIN: _numbers,
    Aggregate.MAX: _numbers,
    Aggregate.DISTINCT: _texts,
    Aggregate.PERCENTILES: _reals,
    Aggregate.TOP: _texts,
    Aggregate.GAPS: _whole,
}
