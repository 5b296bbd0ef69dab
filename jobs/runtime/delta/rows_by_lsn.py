"""One row of a table, from the only file that can hold it: a dataset of all files costs half a millisecond each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

import polars as pl
from deltalake import DeltaTable


def rows_at(table: DeltaTable, lsn: int, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, date | None]]:
    """The rows with this lsn, file by file with its log date; none where there is no such row. Raises OSError."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(
        pl.col("min.lsn").fill_null(lsn) <= lsn, pl.col("max.lsn").fill_null(lsn) >= lsn
    )
    for path, log_date in files.select("path", "partition.log_date").iter_rows():
        file = pl.scan_parquet(f"{table.table_uri.rstrip('/')}/{path}", hive_partitioning=False, glob=False)
        try:
            found = file.filter(pl.col("lsn") == lsn).select(columns).collect()
        except pl.exceptions.ComputeError as error:
            # Polars reports an unavailable store so; the message decides that the driver waits.
            raise OSError(str(error)) from error
        if not found.is_empty():
            yield found, log_date
