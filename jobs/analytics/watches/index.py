"""All watches at once over many rows: those of one shape by a hash join, the others by the value that they compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from jobs.analytics.watches.conditions import TYPES, condition
from jobs.analytics.watches.shapes import MAX_PAIRS, Shape, Split, Watch, by_shape
from metering.contracts.model import Kind
from metering.watches.expressions import Value, column_tests

MIN_OF_A_SHAPE = 8
"""Fewer watches of one shape are tested one by one: a join costs more."""
MAX_EXPRESSIONS = 256
"""Watches whose hits are in memory at once, where each is tested alone."""


class WatchIndex:
    """The watches, compiled once for many batches."""

    def __init__(self, watches: Sequence[Watch], max_pairs: int = MAX_PAIRS) -> None:
        self.columns: Mapping[str, Kind] = {
            test.column: test.kind for watch in watches for test in column_tests(watch.when)
        }
        self._shapes: list[Shape] = []
        self._by_value = defaultdict[str, dict[Value, list[pl.Expr]]](dict)
        self._of_all_rows: list[pl.Expr] = []
        for alike in by_shape(watches):
            if alike[0][1].keys and len(alike) >= MIN_OF_A_SHAPE:
                self._shapes.append(Shape(alike, max_pairs))
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

    def pairs(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Rows with `columns` → (watch, row) of each hit, `row` being the place among the rows; in parts, in no order.

        A column that the rows lack in every file comes as nulls of any type.
        """
        typed = rows.select(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
            *[pl.col(name).cast(TYPES[kind]) for name, kind in self.columns.items()],
        )
        for shape in self._shapes:
            yield from shape.pairs(typed)
        yield from _each(typed, self._of_all_rows)
        for column, by_value in self._by_value.items():
            present = typed.group_by(column).agg(pl.col("row").alias("rows")).filter(pl.col(column).is_not_null())
            for value, places in present.iter_rows():
                if compiled := by_value.get(value):
                    yield from _each(typed[places], compiled)


def _each(rows: pl.DataFrame, compiled: Sequence[pl.Expr]) -> Iterator[pl.DataFrame]:
    for first in range(0, len(compiled), MAX_EXPRESSIONS):
        places = rows.select(compiled[first : first + MAX_EXPRESSIONS])
        listed = places.unpivot(variable_name="watch", value_name="place").explode("place", empty_as_null=False)
        yield listed.select(pl.col("watch").cast(pl.Int64), row=rows["row"].gather(listed["place"]))
