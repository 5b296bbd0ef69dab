"""Rows of a Delta table, from only the files that can hold them, by the minima and maxima in its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from jobs.runtime.delta.scans import TRUNCATED, collected, scan_files
from jobs.streams import SCHEMAS, Table

Bound = int | datetime


@dataclass(frozen=True)
class Files:
    """Files of one version of a table. `schema` has the columns that this version of Weir knows."""

    root: str
    schema: pl.Schema
    listed: pl.DataFrame
    """Path and statistics by file, as the log has them."""
    stored: pl.Schema = field(default_factory=pl.Schema)
    """All columns that the table has."""

    @classmethod
    def of(cls, table: DeltaTable, name: Table) -> Files:
        """All that the table holds now."""
        listed = pl.DataFrame(table.get_add_actions(flatten=True))
        return cls(table.table_uri.rstrip("/"), _schema(name), listed, _empty(pa.schema(table.schema().to_arrow())))

    @classmethod
    def none(cls, name: Table) -> Files:
        """Of a table that does not exist yet."""
        return cls("", _schema(name), pl.DataFrame(schema={"path": pl.String}))

    def with_columns(self, names: Iterable[str]) -> Files:
        """With those of these columns, too, that contracts have added to the table."""
        added = {name: self.stored[name] for name in names if name in self.stored}
        return replace(self, schema=pl.Schema({**added, **self.schema}))

    def between(self, column: str, first: Bound | None, last: Bound | None) -> Files:
        """Those that may hold a value from `first` to `last`, both inclusive; None: without a bound."""
        low, high = self._bounds(column)
        is_possible = pl.lit(True)
        if first is not None:
            is_possible &= (high >= first).fill_null(True)
        if last is not None:
            is_possible &= (low <= last).fill_null(True)
        return replace(self, listed=self.listed.filter(is_possible))

    def latest(self, column: str) -> datetime | None:
        """The largest instant that the log knows of a column; None where it knows of none."""
        _, high = self._bounds(column)
        found: datetime | None = self.listed.select(high.max()).item() if len(self.listed) else None
        return found

    def rows(self, where: pl.Expr, columns: Sequence[str]) -> pl.DataFrame:
        """The rows that match, with `columns`, in no order. A file that is older than a column has no value of it.

        Raises OSError where the store is unavailable.
        """
        if self.listed.is_empty():
            return pl.DataFrame(schema={name: self.schema[name] for name in columns})
        rows = scan_files([f"{self.root}/{path}" for path in self.listed["path"]], self.schema)
        return collected(rows.filter(where).select(columns))

    def by_lsn(self, lsns: Iterable[int], columns: Sequence[str]) -> pl.DataFrame:
        """The rows with these lsns, in their order: of each file only what lies between those that it may hold."""
        wanted = pl.Series(sorted(set(lsns)), dtype=pl.Int64)
        parts = [pl.DataFrame(schema={name: self.schema[name] for name in columns})]
        low, high = self._bounds("lsn")
        for path, first, last in self.listed.select("path", low, high).iter_rows():
            mine = wanted.filter((wanted >= (first or 0)) & ((wanted <= last) if last is not None else True))
            if len(mine):
                file = replace(self, listed=self.listed.filter(pl.col("path") == path))
                parts.append(file.rows(is_among("lsn", mine), columns))
        return pl.concat(parts).sort("lsn")

    def _bounds(self, column: str) -> tuple[pl.Expr, pl.Expr]:
        """The lowest and the highest value of a column by file; null where the log has none."""
        kind = self.schema[column]
        low, high = (
            pl.col(name).cast(kind).alias(name) if name in self.listed.columns else pl.lit(None, kind).alias(name)
            for name in (f"min.{column}", f"max.{column}")
        )
        return low, high + TRUNCATED if isinstance(kind, pl.Datetime) else high


def _schema(name: Table) -> pl.Schema:
    return _empty(SCHEMAS[name])


def _empty(schema: pa.Schema) -> pl.Schema:
    # Arrow's own empty table is made with pandas, whose import takes a quarter of a second.
    return pl.DataFrame(pa.Table.from_batches([], schema)).schema


def is_among(column: str, values: pl.Series) -> pl.Expr:
    """Whether a column has one of these values (at least one), in any order.

    Their range is a condition of its own: by it row groups are passed over, by a list of values none is.
    """
    return pl.col(column).is_between(values.min(), values.max()) & pl.col(column).is_in(values.implode())
