"""What a table still has of its rows: `weir retain` removes whole log dates, and leaves the rows that say rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import polars as pl
from deltalake import DeltaTable

from jobs.runtime.delta.table import LSN


@dataclass(frozen=True)
class Kept:
    """The rows from `first` on, before `next`, and how many of them are missing.

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


def kept(table: DeltaTable) -> Kept:
    """Of one version of the journal or of usage."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
    next_lsn = table.transaction_version(LSN) or 1
    if files.is_empty():
        return Kept(1, next_lsn, 0, None)
    days = files.group_by(pl.col("partition.log_date").alias("log_date")).agg(
        pl.sum("num_records").alias("rows"), pl.min("min.lsn").alias("first")
    )
    rows = pl.scan_pyarrow_dataset(table.to_pyarrow_dataset())
    deciding = rows.filter(pl.col("rules").is_not_null()).group_by("log_date").len("deciding").collect()
    told = days.join(deciding, on="log_date", how="left").with_columns(pl.col("deciding").fill_null(0)).sort("log_date")
    whole = told.filter(pl.col("rows") > pl.col("deciding"))
    # A table that holds nothing else has lost nothing that can be told.
    whole = told if whole.is_empty() else whole
    earlier = told.filter(pl.col("log_date") < whole["log_date"][0])["rows"].sum()
    first = int(whole["first"].min())  # type: ignore[arg-type]
    if earlier >= first - 1:
        return Kept(1, next_lsn, int(told["rows"].sum()), None)
    return Kept(first, next_lsn, int(whole["rows"].sum()), whole["log_date"][0])
