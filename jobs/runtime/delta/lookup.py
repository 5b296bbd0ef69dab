"""Rows of the journal and usage that a batch of another table names, read by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import polars as pl
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.delta.deciding_rows import deciding_rows
from jobs.runtime.delta.followed import FollowedTable
from jobs.runtime.delta.rows_by_lsn import few_rows, whole
from jobs.runtime.delta.table import LSN, open_table
from jobs.streams import Table

MAX_ROWS_LOOKED_THROUGH = 2_000_000
"""Of files that are read by the driver for some of their rows: of outcomes of 15 seconds whose requests came up to a
minute before, at more than 20,000 events/s. Of a million rows it takes 0.2 CPU-seconds, and Spark takes many.
"""


class DeltaLookup:
    """`Lookup` in the tables of one folder or bucket."""

    def __init__(self, spark: SparkSession, tables: str) -> None:
        self._spark = spark
        self._tables = tables
        self._followed: dict[Table, FollowedTable] = {}
        self._whole: dict[Table, tuple[int, tuple[str, ...], pl.DataFrame]] = {}

    def rows(self, table: Table, condition: str) -> DataFrame:
        """The rows that meet the condition, as the table is now."""
        return self._spark.read.format("delta").load(f"{self._tables}/{table}").where(condition)

    def few_rows(self, table: Table, lsns: pl.Series, columns: Sequence[str]) -> pl.DataFrame | None:
        """`lsn` and those of `columns` that the table has, read without Spark; None where that would be too much."""
        opened = self._open(table)
        return None if opened is None else few_rows(opened, lsns, columns, MAX_ROWS_LOOKED_THROUGH)

    def whole(self, table: Table, columns: Sequence[str]) -> pl.DataFrame | None:
        """All rows of a small table, read without Spark, again only where it has changed; None where there is none."""
        if (opened := self._open(table)) is None:
            return None
        version, names = opened.version(), tuple(columns)
        known = self._whole.get(table)
        if known is None or known[:2] != (version, names):
            known = version, names, whole(opened, names)
            self._whole[table] = known
        return known[2]

    def _open(self, table: Table) -> DeltaTable | None:
        if table in self._followed:
            return self._followed[table].refresh()
        if (found := open_table(self._tables, table)) is not None:
            self._followed[table] = FollowedTable(found)
        return found

    def has_all_since(self, table: Table, day: date) -> bool:
        """Whether no row of this log date or a later one was removed: whole log dates go, from the old end."""
        found = open_table(self._tables, table)
        if found is None:
            return True
        files = pl.DataFrame(found.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
        if files["num_records"].sum() == (found.transaction_version(LSN) or 1) - 1:
            return True
        days = files.group_by("partition.log_date").agg(pl.sum("num_records")).sort("partition.log_date")
        # Rows that hold rules are left of removed days, so a day that has other rows is whole.
        return any(log_date <= day and rows > deciding_rows(found, log_date) for log_date, rows in days.iter_rows())
