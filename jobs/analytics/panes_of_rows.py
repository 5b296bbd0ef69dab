"""The same as `panes` for outcomes that the driver has: a job of Spark cost more than all sketches of a batch.

Sketches are made by the library that merges them (`view_measures`), which hashes as Spark's does. A column whose values
each library casts to another last digit is left to Spark (`can_measure`). `tests/pipelines/test_panes_of_rows.py` has
both do the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import polars as pl
import pyarrow as pa

from jobs.analytics.panes import text
from jobs.view_measures import Stored, distinct_of, percentiles_of, top_of, written
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


def panes_of_rows(outcomes: pa.Table, view: View, schema: pa.Schema) -> pa.Table:
    """Outcomes (event_time, the view's columns) → rows of `schema` as `panes` makes them."""
    minute = pl.col("event_time").dt.convert_time_zone("UTC").dt.truncate("1m").alias(MINUTE)
    keys = [pl.col(key).cast(pl.String).alias(f"{place}") for place, key in enumerate(view.by)]
    found = (
        pl.DataFrame(outcomes)
        .filter(pl.col("event_time").is_not_null())
        .group_by(minute, *keys, maintain_order=True)
        .agg(_taken(measure).alias(f"#{place}") for place, measure in enumerate(view.measures))
    )
    listed = found.select([key.meta.output_name() for key in keys]).rows() if keys else [()] * len(found)
    measures = (_STORED[measure.aggregate](found[f"#{place}"]) for place, measure in enumerate(view.measures))
    names = [measure.name for measure in view.measures]
    rows = zip(*measures, strict=True) if names else iter([()] * len(found))
    account = view.by.index("account") if "account" in view.by else None
    columns: Mapping[str, Any] = {
        "view": [view.name] * len(found),
        "version": [view.version] * len(found),
        "window_start": found[MINUTE].to_arrow(),
        "account": [None if account is None else of_pane[account] for of_pane in listed],
        "keys": [json.dumps(of_pane, ensure_ascii=False) for of_pane in listed],
        "measures": [
            written({name: value for name, value in zip(names, row, strict=True) if value is not None}) for row in rows
        ],
    }
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


def _taken(measure: Measure) -> pl.Expr:
    """Of a pane: a count, a number, or the values of a sketch in the order of the outcomes."""
    conditions = [
        pl.col(column).cast(pl.String).is_in([text(value) for value in values]).fill_null(value=False)
        for column, values in measure.where
    ]
    is_taken = reduce(pl.Expr.and_, conditions, pl.lit(value=True))
    if measure.column is None:
        return is_taken.sum() if conditions else pl.len()
    column = pl.col(measure.column)
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
    return values.cast(pl.String)


def _counts(found: pl.Series) -> Iterator[Stored | None]:
    return map(str, found.to_list())


def _numbers(found: pl.Series) -> Iterator[Stored | None]:
    for number in found.to_list():
        yield None if number is None else f"{number}.{'0' * QUANTITY_DECIMALS}"


def _texts(make: Callable[[list[str]], Stored]) -> Callable[[pl.Series], Iterator[Stored | None]]:
    def of_panes(found: pl.Series) -> Iterator[Stored | None]:
        values, ends = _flat(found)
        listed, begin = values.to_list(), 0
        for end in ends:
            yield make(listed[begin:end])
            begin = end

    return of_panes


def _percentiles(found: pl.Series) -> Iterator[Stored | None]:
    values, ends = _flat(found)
    array, begin = values.to_numpy(writable=True), 0
    for end in ends:
        yield percentiles_of(array[begin:end])
        begin = end


def _flat(found: pl.Series) -> tuple[pl.Series, list[int]]:
    """Lists as one series, and where each of them ends in it."""
    lengths = found.list.len()
    return found.filter(lengths > 0).explode(), lengths.cast(pl.Int64).cum_sum().to_list()


_STORED: Mapping[Aggregate, Callable[[pl.Series], Iterator[Stored | None]]] = {
    Aggregate.COUNT: _counts,
    Aggregate.SUM: _numbers,
    Aggregate.MIN: _numbers,
    Aggregate.MAX: _numbers,
    Aggregate.DISTINCT: _texts(distinct_of),
    Aggregate.PERCENTILES: _percentiles,
    Aggregate.TOP: _texts(top_of),
}
