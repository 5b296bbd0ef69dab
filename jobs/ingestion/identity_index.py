"""Which identities were accepted within the dedupe horizon: the memory of ingestion, derived from the journal.

A record repeats an accepted one when that has a lower lsn and was received no more than the horizon before it. Both are
facts of the records, so the answer is the same however the input was cut and however long segments are kept.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl

SEGMENTS_PER_HORIZON = 8
ENTRY: dict[str, pl.DataType | type[pl.DataType]] = {
    "high": pl.UInt64,
    "low": pl.UInt64,
    "content_digest": pl.Int64,
    "lsn": pl.Int64,
    "received_at": pl.Datetime("us", "UTC"),
}
"""An accepted record: its identity as two halves, its content, its lsn (8 bytes each) and when it was received."""


def entries(identity: pl.Series, content_digest: pl.Series, lsn: pl.Series, received_at: pl.Series) -> pl.DataFrame:
    """Rows of `ENTRY` from columns; `identity` is binary, 16 bytes each."""
    high, low = (identity.bin.slice(start, 8).bin.reinterpret(dtype=pl.UInt64) for start in (0, 8))
    columns = [high, low, content_digest, lsn, received_at]
    return pl.DataFrame(dict(zip(ENTRY, columns, strict=True)), schema_overrides=ENTRY)


class IdentityIndex:
    """Accepted identities in segments of `received_at`: forgetting is dropping a segment. 40 bytes an identity."""

    def __init__(self, horizon: timedelta) -> None:
        self._horizon = horizon
        self._segments: dict[int, list[pl.DataFrame]] = {}

    def __len__(self) -> int:
        return sum(len(part) for parts in self._segments.values() for part in parts)

    def find_repeats(self, batch: pl.DataFrame) -> pl.DataFrame:
        """The rows of `batch` (ENTRY, in lsn order) that repeat an accepted record, with `first_lsn` and `same`.

        Columns: lsn, first_lsn (the lowest that it repeats), same (whether the content is the same). All other rows
        are to be accepted. The index itself does not change.
        """
        rest, accepted, found = batch, self._accepted_like(batch), []
        while True:
            repeats = _repeats(rest, accepted).filter(_within(self._horizon))
            found.append(repeats.unique("lsn", keep="first", maintain_order=True))
            rest = rest.join(repeats, on="lsn", how="anti", maintain_order="left")
            firsts = rest.unique(["high", "low"], keep="first", maintain_order=True)
            if len(firsts) == len(rest):
                return pl.concat(found).select("lsn", "first_lsn", "same")
            # Each round accepts one more record of every identity that is left; the next are its repeats or new again.
            accepted = firsts
            rest = rest.join(firsts, on="lsn", how="anti", maintain_order="left")

    def _accepted_like(self, batch: pl.DataFrame) -> pl.DataFrame:
        parts = [part for parts in self._segments.values() for part in parts]
        remembered = pl.concat(parts, rechunk=False) if parts else batch.clear()
        return remembered.join(batch, on="high", how="semi").sort("lsn")

    def add(self, accepted: pl.DataFrame) -> None:
        """Remember accepted records (ENTRY)."""
        width = max(1, self._horizon // timedelta(microseconds=1) // SEGMENTS_PER_HORIZON)
        numbered = accepted.with_columns((pl.col("received_at").dt.epoch("us") // width).alias("segment"))
        for part in numbered.partition_by("segment", maintain_order=True):
            self._segments.setdefault(part["segment"][0], []).append(part.drop("segment"))

    def forget(self, frontier: datetime | None) -> None:
        """Drop the segments that no record received at or after `frontier` can repeat."""
        if frontier is None:
            return
        oldest = frontier - self._horizon
        for number, parts in list(self._segments.items()):
            if all(part.filter(pl.col("received_at") >= oldest).is_empty() for part in parts):
                del self._segments[number]


def _repeats(rows: pl.DataFrame, accepted: pl.DataFrame) -> pl.DataFrame:
    """Pairs of a row and an accepted record of the same identity, in the order of (row, accepted)."""
    return rows.join(accepted, on=["high", "low"], how="inner", suffix="_first", maintain_order="left_right").select(
        "lsn",
        pl.col("lsn_first").alias("first_lsn"),
        (pl.col("content_digest") == pl.col("content_digest_first")).alias("same"),
        "received_at",
        "received_at_first",
    )


def _within(horizon: timedelta) -> pl.Expr:
    return pl.col("received_at_first") >= pl.col("received_at") - horizon
