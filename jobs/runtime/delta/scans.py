"""Rows of some files of a Delta table, by Polars: the table's own dataset takes milliseconds more for each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import polars as pl

TRUNCATED = timedelta(milliseconds=1)
"""A table's log has instants cut to milliseconds: the latest one of a file may be later by up to this."""


def scan_files(uris: Sequence[str], schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.LazyFrame:
    """The rows of at least one file, with the columns of `schema`: null where a file is older than a column."""
    return pl.scan_parquet(
        list(uris),
        schema=schema,
        hive_partitioning=False,
        glob=False,
        extra_columns="ignore",
        missing_columns="insert",
    )


def collected(rows: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a scan. Raises OSError where the store is unavailable."""
    try:
        return rows.collect()
    except pl.exceptions.ComputeError as error:
        # Polars reports an unavailable store so; the message decides whether a driver waits.
        raise OSError(str(error)) from error
