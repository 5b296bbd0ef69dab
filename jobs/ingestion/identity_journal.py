"""The journal as ingestion reads it back: statistics of its files, and rows that new ones may repeat or replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from jobs.ingestion.identity_segment import ALWAYS, ANY_DAY, Span
from jobs.ingestion.repeats import entries
from jobs.ingestion.replays import REJECTED, rejected, replayed_rows
from jobs.journal.elements import FIELD, KIND, has_elements, is_event
from jobs.journal.families import family
from jobs.runtime.delta.scans import collected, scan_files
from jobs.runtime.delta.table import DeltaWriter
from jobs.runtime.kafka.records import PLACE
from metering.contracts.unnest import COLUMN
from metering.vocabulary import Disposition

READ = ("identity", "content_digest", "lsn", "received_at", "occurred_at")
"""The columns that `entries` takes."""
_INSTANT = pl.Datetime("us", "UTC")
_READ_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "lsn": pl.Int64,
    "identity": pl.Binary,
    "content_digest": pl.Int64,
    "received_at": _INSTANT,
    "occurred_at": _INSTANT,
    "disposition": pl.String,
    "type": pl.String,
    "family": pl.String,
    "value": pl.Binary,
    "topic": pl.String,
    "partition": pl.Int32,
    "offset": pl.Int64,
    "reason": pl.String,
    "replay_mark": pl.String,
    "first_received_at": _INSTANT,
    "replays_lsn": pl.Int64,
}
_STATISTICS = (
    *("max.received_at", "min.occurred_at", "max.occurred_at"),
    *("min.offset", "max.offset", "min.replays_lsn", "max.replays_lsn"),
)
STATISTICS_UNIT_US = 1_000
"""Writers may cut the instants of statistics to milliseconds."""


class JournalIdentities:
    """Accepted identities as of the writer's last commit."""

    def __init__(self, writer: DeltaWriter) -> None:
        self._writer = writer
        has_column = COLUMN in writer.stored.names and writer.stored.field(COLUMN).type == FIELD.type
        self._schema = {**_READ_SCHEMA, COLUMN: KIND} if has_column else _READ_SCHEMA

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
        """Accepted rows (ENTRY) with lsn in [first_lsn, end_lsn), in lsn order, one for each event."""
        is_held = (pl.col("lsn") >= first_lsn) & (pl.col("lsn") < end_lsn)
        is_accepted = (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("identity").is_not_null()
        files = self._files().filter(pl.col("last_lsn") >= first_lsn, pl.col("first_lsn") < end_lsn)
        # A repeat of a record without a contract is compared by the present contract.
        rows = self._rows(files, is_held & is_accepted & family().is_not_null() & is_event(self._schema), READ)
        return entries(rows).sort("lsn")

    def values(self, lsns: pl.Series) -> pl.DataFrame:
        """The values (lsn, value) of rows, in lsn order."""
        files = _with_any(self._files(), lsns, "first_lsn", "last_lsn")
        return self._rows(files, pl.col("lsn").is_in(lsns.unique().implode()), ("lsn", "value")).sort("lsn")

    def rejected(self, places: pl.DataFrame) -> pl.DataFrame:
        """Those of the events at these places (PLACE) that marks can name (replays.REJECTED)."""
        statistics = self._files().with_columns(
            # A file without statistics may have records of any place.
            pl.col("min.offset").cast(pl.Int64).fill_null(0),
            pl.col("max.offset").cast(pl.Int64).fill_null(ALWAYS),
        )
        files = _with_any(statistics, places["offset"], "min.offset", "max.offset")
        is_there = pl.col("offset").is_in(places["offset"].unique().implode())
        is_rejected = pl.col("disposition") == Disposition.REJECTED
        found = self._rows(files, is_there & is_rejected, (*REJECTED, "reason", "replay_mark", "first_received_at"))
        return rejected(found).join(places, on=list(PLACE), how="semi")

    def accepted_replays(self, lsns: pl.Series) -> pl.DataFrame:
        """Which of these dead letters were accepted, and as which row (repeats.REPLAYED)."""
        # No file without the statistic has one: it is as old as the column.
        statistics = (
            self._files()
            .with_columns(pl.col("min.replays_lsn", "max.replays_lsn").cast(pl.Int64))
            .drop_nulls(["min.replays_lsn", "max.replays_lsn"])
        )
        files = _with_any(statistics, lsns, "min.replays_lsn", "max.replays_lsn")
        is_wanted = pl.col("replays_lsn").is_in(lsns.unique().implode()) & is_event(self._schema)
        columns = ("lsn", "disposition", "replays_lsn", *([COLUMN] if has_elements(self._schema) else []))
        return replayed_rows(self._rows(files, is_wanted, columns))

    def _rows(self, files: pl.DataFrame, wanted: pl.Expr, columns: Sequence[str]) -> pl.DataFrame:
        """The wanted rows of some files."""
        paths = [f"{self._writer.path.rstrip('/')}/{path}" for path in files["path"]]
        if not paths:
            return pl.DataFrame(schema={name: self._schema[name] for name in columns})
        return collected(scan_files(paths, self._schema).filter(wanted).select(columns))

    def _files(self) -> pl.DataFrame:
        """Path and statistics of every file with rows; a statistic that no file has is a column of nulls."""
        actions = pl.DataFrame(self._writer.table.get_add_actions(flatten=True))
        wanted = ("min.lsn", "max.lsn", *_STATISTICS)
        missing = [pl.lit(None).alias(name) for name in wanted if name not in actions.columns]
        return (
            actions.with_columns(missing)
            .select(
                "path",
                pl.col("min.lsn").cast(pl.Int64).fill_null(0).alias("first_lsn"),
                pl.col("max.lsn").cast(pl.Int64).fill_null(self._writer.next_lsn - 1).alias("last_lsn"),
                *_STATISTICS,
            )
            .filter(pl.col("first_lsn") <= pl.col("last_lsn"))
        )


def _with_any(files: pl.DataFrame, wanted: pl.Series, least: str, most: str) -> pl.DataFrame:
    """Files with any of the wanted numbers between their least and their most."""
    numbers = wanted.drop_nulls().unique().sort()
    begins = numbers.search_sorted(files[least], side="left")
    ends = numbers.search_sorted(files[most], side="right")
    return files.filter(begins < ends)


def _statistic(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Datetime("us", "UTC"))


def _day(name: str) -> pl.Expr:
    return _statistic(name).dt.date().to_physical().cast(pl.Int32)
