"""The journal as the identity index reads it: its files' statistics, and the accepted rows of a range of lsn."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from jobs.ingestion.identity_segment import ALWAYS, ANY_DAY, Span
from jobs.ingestion.repeats import ENTRY, entries
from jobs.runtime.delta.table import DeltaWriter
from metering.words import Disposition

READ = ("identity", "content_digest", "lsn", "received_at", "occurred_at")
"""The columns that `entries` takes."""
STATISTICS_UNIT_US = 1_000
"""Writers may cut the instants of statistics to milliseconds."""


class JournalIdentities:
    """Accepted identities as of the writer's last commit."""

    def __init__(self, writer: DeltaWriter) -> None:
        self._writer = writer

    def spans(self) -> Iterator[Span]:
        """One for each file. Files of an older version know nothing of `occurred_at`."""
        for first_lsn, last_lsn, latest_us, first_day, last_day in (
            self._files()
            .select(
                "first_lsn",
                "last_lsn",
                (_statistic("max.received_at").to_physical() + STATISTICS_UNIT_US).fill_null(ALWAYS),
                _day("min.occurred_at").fill_null(ANY_DAY[0]),
                _day("max.occurred_at").fill_null(ANY_DAY[1]).alias("last_day"),
            )
            .iter_rows()
        ):
            yield Span(first_lsn, last_lsn, latest_us, (first_day, last_day))

    def read(self, first_lsn: int, end_lsn: int) -> pl.DataFrame:
        """Accepted rows (ENTRY) with lsn in [first_lsn, end_lsn), in lsn order."""
        holding = self._files().filter(pl.col("last_lsn") >= first_lsn, pl.col("first_lsn") < end_lsn)
        paths = [f"{self._writer.path.rstrip('/')}/{path}" for path in holding["path"]]
        if not paths:
            return pl.DataFrame(schema=ENTRY)
        # Not by the table's own dataset: that takes milliseconds for a file, and a day has thousands.
        rows = (
            pl.scan_parquet(
                paths, hive_partitioning=False, glob=False, extra_columns="ignore", missing_columns="insert"
            )
            .filter(
                (pl.col("lsn") >= first_lsn)
                & (pl.col("lsn") < end_lsn)
                & (pl.col("disposition") == Disposition.ACCEPTED)
                & pl.col("identity").is_not_null()
            )
            .select(READ)
        )
        try:
            return entries(rows.collect()).sort("lsn")
        except pl.exceptions.ComputeError as error:
            # So Polars tells of a store that is away, which is waited for by what it says.
            raise OSError(str(error)) from error

    def _files(self) -> pl.DataFrame:
        """Path and statistics of every file with rows; a statistic that no file has is a column of nulls."""
        actions = pl.DataFrame(self._writer.table.get_add_actions(flatten=True))
        wanted = ("min.lsn", "max.lsn", "max.received_at", "min.occurred_at", "max.occurred_at")
        missing = [pl.lit(None).alias(name) for name in wanted if name not in actions.columns]
        return (
            actions.with_columns(missing)
            .select(
                "path",
                pl.col("min.lsn").cast(pl.Int64).fill_null(0).alias("first_lsn"),
                pl.col("max.lsn").cast(pl.Int64).fill_null(self._writer.next_lsn - 1).alias("last_lsn"),
                *wanted[2:],
            )
            .filter(pl.col("first_lsn") <= pl.col("last_lsn"))
        )


def _statistic(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Datetime("us", "UTC"))


def _day(name: str) -> pl.Expr:
    return _statistic(name).dt.date().to_physical().cast(pl.Int32)
