"""Rows of the journal and usage that a batch of another table names, read by Spark."""

from __future__ import annotations

from datetime import date

import polars as pl
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.delta.table import REMOVED, open_table
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
        if found is None or not found.transaction_version(REMOVED):
            return True
        files = pl.DataFrame(found.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
        # Files of removed days may stay for the rows that hold rules: they are of days before, and few.
        days = files.group_by("partition.log_date").agg(pl.sum("num_records")).sort("partition.log_date")
        return self._begins(days) <= day

    @staticmethod
    def _begins(days: pl.DataFrame) -> date:
        """The first log date that has more than a row of rules; the last one where none has."""
        whole = days.filter(pl.col("num_records") > 1)
        return date.max if days.is_empty() else (days if whole.is_empty() else whole)["partition.log_date"][0]
