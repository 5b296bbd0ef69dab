"""All watches at once over many rows: those of one shape by a hash join, the others by the value that they compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from jobs.analytics.watches.conditions import TYPES, condition
from jobs.analytics.watches.shapes import Shape, Split, Watch, by_shape
from metering.contracts.model import Kind
from metering.watches.expressions import Value, column_tests

MIN_OF_A_SHAPE = 8
"""Fewer watches of one shape are tested one by one: a join costs more."""
PAIRS = {"watch": pl.Int64(), "row": pl.UInt32()}


class WatchIndex:
    """The watches, compiled once for many batches."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.columns: Mapping[str, Kind] = {
            test.column: test.kind for one in watches for test in column_tests(one.when)
        }
        self._shapes: list[Shape] = []
        self._by_value = defaultdict[str, dict[Value, list[pl.Expr]]](dict)
        self._of_all_rows: list[pl.Expr] = []
        for alike in by_shape(watches):
            if alike[0][1].keys and len(alike) >= MIN_OF_A_SHAPE:
                self._shapes.append(Shape(alike))
                continue
            for watch, of_watch in alike:
                self._add(watch, of_watch)

    def _add(self, watch: Watch, of_watch: Split) -> None:
        compiled = condition(watch.when).arg_true().implode().alias(str(watch.id))
        if not of_watch.keys:
            self._of_all_rows.append(compiled)
            return
        # One value finds fewer rows than a list of them, and a boolean finds half.
        first = min(of_watch.keys, key=lambda test: (test.kind is Kind.BOOLEAN, len(test.values)))
        for value in first.values:
            self._by_value[first.column].setdefault(value, []).append(compiled)

    def hits(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with `columns` → (watch, row) of each hit, `row` being the place among the rows; in no order."""
        if rows.is_empty():
            return pl.DataFrame(schema=PAIRS)
        typed = rows.select(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
            *[pl.col(name).cast(TYPES[kind]) for name, kind in self.columns.items()],
        )
        parts = [part for shape in self._shapes for part in shape.pairs(typed)]
        parts += self._hits_by_value(typed)
        parts.append(_each(typed, self._of_all_rows))
        return pl.concat([pl.DataFrame(schema=PAIRS), *parts])

    def _hits_by_value(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        for column, by_value in self._by_value.items():
            present = rows.group_by(column).agg(pl.col("row").alias("rows")).filter(pl.col(column).is_not_null())
            for value, places in present.iter_rows():
                if compiled := by_value.get(value):
                    yield _each(rows[places], compiled)


def _each(rows: pl.DataFrame, compiled: Sequence[pl.Expr]) -> pl.DataFrame:
    if not compiled:
        return pl.DataFrame(schema=PAIRS)
    places = rows.select(compiled)
    listed = places.unpivot(variable_name="watch", value_name="place").explode("place", empty_as_null=False)
    return listed.select(pl.col("watch").cast(pl.Int64), row=rows["row"].gather(listed["place"]))
