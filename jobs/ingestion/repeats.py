"""When an event repeats an accepted one: a rule about two rows of the journal, and about nothing else.

Within the exact horizon of `received_at`, the same identity is a repeat. An older event may repeat an older one: if its
source is trusted, that one was received after it occurred; a device's clock says nothing of that, so all that was
received within the whole horizon counts. In both cases the two occurred on the same day (UTC).

A record of the past, as a dead letter that was sent again, repeats what it would have repeated when it was first
received, and all of its identity since. And only one record per dead letter is accepted, however it was
made of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from jobs.ingestion.source_patterns import is_listed

NO_DAY = -(2**31)
"""The day of an event whose time no reader could hold; only a device can send one that is accepted."""
INSTANT = pl.Datetime("us", "UTC")
ENTRY: dict[str, pl.DataType | type[pl.DataType]] = {
    "high": pl.UInt64,
    "low": pl.UInt64,
    "content_digest": pl.Int64,
    "lsn": pl.Int64,
    "received_at": INSTANT,
    "day": pl.Int32,
}
"""An accepted record: its identity as two halves, its content, its lsn, when it was received, and on which day since
1970 it occurred. 44 bytes."""
CANDIDATE = {**ENTRY, "near_since": INSTANT, "far_since": INSTANT, "replays_lsn": pl.Int64}
"""A record that may repeat an earlier one: one received at `near_since` or later; where `far_since` is not null, one of
the same day received then or later; where `replays_lsn` is not null, one that replays the same row."""
REPLAYED: dict[str, pl.DataType | type[pl.DataType]] = {"replays_lsn": pl.Int64, "first_lsn": pl.Int64}
"""A dead letter that was accepted: its lsn, and that of the row which replays it."""


@dataclass(frozen=True)
class Horizons:
    """How far before an event that repeats it the first may have been received.

    `exact`: for any event. `whole`: for older events and devices' (no less than `exact`). `early`: how long before it
    occurs an event may be received.
    """

    exact: timedelta
    whole: timedelta
    early: timedelta


def entries(rows: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """Rows of `ENTRY` from journal rows; `identity` is binary, 16 bytes each."""
    return rows.lazy().select(_entry()).collect()


def candidates(rows: pl.DataFrame, horizons: Horizons, devices: Iterable[str]) -> pl.DataFrame:
    """Rows of `CANDIDATE` from valid journal rows; `devices` are patterns of the `source` of devices."""
    received_at, occurred_at = pl.coalesce("first_received_at", "received_at"), pl.col("occurred_at")
    first_of_device = received_at - horizons.whole
    first_of_trusted = pl.max_horizontal(first_of_device, occurred_at - horizons.early)
    is_late = pl.any_horizontal(pl.col("replays_lsn", "first_received_at").is_not_null())
    is_older = (occurred_at <= received_at - horizons.exact + horizons.early) | is_late
    return rows.with_columns(is_listed(rows["source"], devices).alias("is_device")).select(
        *_entry(),
        (received_at - horizons.exact).cast(INSTANT).alias("near_since"),
        pl.when("is_device")
        .then(first_of_device)
        .when(is_older)
        .then(first_of_trusted)
        .cast(INSTANT)
        .alias("far_since"),
        pl.col("replays_lsn").cast(pl.Int64),
    )


def repeats(rows: pl.DataFrame, accepted: pl.DataFrame) -> pl.DataFrame:
    """Which `rows` (CANDIDATE) repeat which `accepted` (ENTRY or more, all of lower lsn): lsn, first_lsn, same.

    In the order of (row, accepted), so that a row's first line is the lowest that it repeats if `accepted` is in lsn
    order.
    """
    received_at = pl.col("received_at_first")
    is_near = received_at >= pl.col("near_since")
    is_far = (received_at >= pl.col("far_since")) & (pl.col("day") == pl.col("day_first"))
    pairs = rows.join(accepted, on=["high", "low"], how="inner", suffix="_first", maintain_order="left_right")
    return pairs.filter(is_near | is_far.fill_null(value=False)).select(
        "lsn",
        pl.col("lsn_first").alias("first_lsn"),
        (pl.col("content_digest") == pl.col("content_digest_first")).alias("same"),
    )


def incomparable(found: pl.DataFrame, since: int) -> pl.Series:
    """The firsts below lsn `since`, of `repeats`, whose digests differ, though their contents may not."""
    return found.filter(pl.col("same").not_() & (pl.col("first_lsn") < since))["first_lsn"].unique().sort()


def compared(found: pl.DataFrame, rows: pl.DataFrame, firsts: pl.DataFrame) -> pl.DataFrame:
    """`repeats` of `rows` (lsn, content_digest), where `firsts` (first_lsn, first_digest) were read again.

    A first without a digest could not be read: its repeat stays as it was.
    """
    digests = found.join(firsts, on="first_lsn", how="left", maintain_order="left").join(
        rows.select("lsn", "content_digest"), on="lsn", how="left", maintain_order="left"
    )
    is_same = (pl.col("first_digest") == pl.col("content_digest")).fill_null(value=False)
    return digests.select("lsn", "first_lsn", same=pl.col("same") | is_same)


def _entry() -> list[pl.Expr]:
    halves = [pl.col("identity").bin.slice(start, 8).bin.reinterpret(dtype=pl.UInt64) for start in (0, 8)]
    return [
        halves[0].alias("high"),
        halves[1].alias("low"),
        pl.col("content_digest").cast(pl.Int64),
        pl.col("lsn").cast(pl.Int64),
        pl.col("received_at").cast(INSTANT),
        pl.col("occurred_at").cast(INSTANT).dt.date().to_physical().cast(pl.Int32).fill_null(NO_DAY).alias("day"),
    ]
