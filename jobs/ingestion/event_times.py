"""When an event occurred, by the clocks that are believed, and whether that is near enough to when it was received.

Judged on the driver, because only there `received_at` is known: a record's own stamp is not all of it.
The columns' form of metering/clock.py.
"""

from __future__ import annotations

import polars as pl

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.received import INSTANT
from metering.words import Isolation, Reason

FIRST_STORABLE_US, END_STORABLE_US = 0, 32_503_680_000_000_000
"""1970 and 3000: instants from, and before, which Arrow, Parquet, Postgres and Python all hold; others are null."""


def judged_by_reception(records: pl.DataFrame, config: IngestionConfig) -> pl.DataFrame:
    """Records of `classify` with `received_at`, judged to the end: the journal's columns of one record.

    By `first_received_at` where a record has one: its device sent it then, and its way since is no lateness of its own.
    A record that a producer stamped is `unstamped`, whatever else it is, unless it is isolated: then nothing that it
    says was judged, and the reason stays. Adds `event_time` and `clock_offset_ms`
    (rounded down); `reason` may become too_old or future, and a rejected row has no `content_digest`.
    """
    received_us = pl.coalesce("first_received_at", "received_at").dt.epoch("us")
    occurred_us = pl.col("occurred_us")
    offset_us = received_us - pl.col("device_sent_us")
    is_wrong = offset_us.abs() > config.clocks.tolerance_seconds * 1_000_000
    event_us = occurred_us + pl.when(is_wrong).then(offset_us).otherwise(0)
    early_us = event_us - received_us
    return records.with_columns(
        pl.when(~pl.col("is_broker_stamp") & ~pl.col("reason").is_in(list(Isolation)).fill_null(value=False))
        .then(pl.lit(Reason.UNSTAMPED.value))
        .when(pl.col("reason").is_not_null())
        .then("reason")
        .when(early_us < -config.accept_past_seconds * 1_000_000)
        .then(pl.lit(Reason.TOO_OLD.value))
        .when(early_us > config.accept_future_seconds * 1_000_000)
        .then(pl.lit(Reason.FUTURE.value))
        .alias("reason"),
        pl.when((event_us >= FIRST_STORABLE_US) & (event_us < END_STORABLE_US))
        .then(event_us)
        .cast(INSTANT)
        .alias("event_time"),
        (offset_us // 1_000).alias("clock_offset_ms"),
    ).with_columns(pl.when(pl.col("reason").is_null()).then("content_digest").alias("content_digest"))
