"""The rows that a table still has: `weir retain` removes whole log dates, but not the rows that hold rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.runtime.delta.table import LSN, REMOVED

_BATCH_ROWS = 1_000_000
_WRAPS = 1 << 64


@dataclass(frozen=True)
class RetainedRows:
    """The rows from `first` on, before `next`, and how many of them are missing, or there too often.

    `since`: the log date from which on there should be every row; None where none was removed.
    """

    first: int
    next: int
    rows: int
    since: date | None

    @property
    def missing(self) -> int:
        """Below 0: rows too many."""
        return self.next - self.first - self.rows


def retained_rows(table: DeltaTable) -> RetainedRows:
    """Of one version of the journal or of usage.

    Rows are removed from the old end, and counted (transaction REMOVED); of a table of a release that did not count,
    what is not there at its old end was removed.
    """
    next_lsn = table.transaction_version(LSN) or 1
    days = _days(table)
    if days.is_empty():
        return RetainedRows(1, next_lsn, 0, None)
    whole = days.filter(pl.col("rows") > pl.col("deciding"))
    # If a table has only such rows, a loss cannot be detected.
    whole = days if whole.is_empty() else whole
    since, first = whole["log_date"][0], int(whole["first"].min())  # type: ignore[arg-type]
    earlier = int(days.filter(pl.col("log_date") < since)["rows"].sum())
    removed = table.transaction_version(REMOVED)
    gap = first - 1 - earlier
    if gap <= 0 or (removed is not None and removed != gap):
        first, since = 1 + (removed or 0), None if not removed else since
        return RetainedRows(first, next_lsn, int(days["rows"].sum()), since)
    rows = int(days.filter(pl.col("log_date") >= since)["rows"].sum())
    return RetainedRows(first, next_lsn, rows, since)


def has_each_once(table: DeltaTable, retained: RetainedRows) -> bool:
    """Whether the rows have the numbers between `first` and `next`, each once, where none are missing.

    By a sum of hashes, as those of other numbers may agree; some rows at a time, however many there are.
    """
    found = sum(
        _hashed(batch["lsn"])
        for batch in table.to_pyarrow_dataset().to_batches(columns=["lsn"], filter=pc.field("lsn") >= retained.first)
    )
    must = sum(
        _hashed(pl.int_range(first, min(first + _BATCH_ROWS, retained.next), dtype=pl.Int64, eager=True))
        for first in range(retained.first, retained.next, _BATCH_ROWS)
    )
    return found % _WRAPS == must % _WRAPS


def _hashed(lsns: pa.Array | pl.Series) -> int:
    return int(pl.Series(lsns).hash().sum())


def _days(table: DeltaTable) -> pl.DataFrame:
    """By log date: how many rows, the lowest lsn, and how many of them say rules."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
    if files.is_empty():
        return files
    days = files.group_by(pl.col("partition.log_date").alias("log_date")).agg(
        pl.sum("num_records").alias("rows"), pl.min("min.lsn").alias("first")
    )
    rows = pl.scan_pyarrow_dataset(table.to_pyarrow_dataset())
    deciding = rows.filter(pl.col("rules").is_not_null()).group_by("log_date").len("deciding").collect()
    return days.join(deciding, on="log_date", how="left").with_columns(pl.col("deciding").fill_null(0)).sort("log_date")
