"""Rows of the journal and usage that a batch of another table names, read by Spark."""

from __future__ import annotations

from datetime import date

import polars as pl
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.delta.deciding_rows import deciding_rows
from jobs.runtime.delta.table import LSN, open_table
from jobs.streams import Table


class DeltaLookup:
    """`Lookup` in the tables of one folder or bucket."""

    def __init__(self, spark: SparkSession, tables: str) -> None:
        self._spark = spark
        self._tables = tables

    def rows(self, table: Table, condition: str) -> DataFrame:
        """The rows that meet the condition, as the table is now."""
        return self._spark.read.format("delta").load(f"{self._tables}/{table}").where(condition)

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
