"""The keys that need no fold: one row by itself, or a request and its completion. Nearly all are."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
from pyspark.sql import DataFrame, SparkSession

from jobs.joins.memory import KEY
from jobs.streams import EventType, Meter

TOKENS = tuple(meter.value for meter in Meter if meter is not Meter.REQUESTS)


def split(rows: pl.DataFrame, timeout: timedelta) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `memory.CARRIED` → (pairs, contested): a row for each key that nobody contests, and all other rows.

    A key is uncontested when it has one row, or one request and one completion within the timeout of each other, and
    none that was decided before. `usage.v1` by itself is both sides of its pair. Pairs: account, request_id,
    request_lsn, completion_lsn, request_us and completion_us (when they were received), event_time (the completion's,
    else the request's), user_id and model of the request, status and tokens of the completion; null on a side that is
    missing.
    """
    number, event_type = pl.int_range(pl.len()), pl.col("type")
    begins, ends = event_type != EventType.COMPLETION, event_type != EventType.REQUEST
    keys = rows.with_columns(
        pl.when(begins).then(number).alias("begun"), pl.when(ends).then(number).alias("ended")
    ).group_by(KEY)
    counted = keys.agg(
        pl.len().alias("rows"),
        pl.count("begun").alias("requests"),
        pl.count("ended").alias("completions"),
        pl.min("begun", "ended"),
        (pl.max("received_at") - pl.min("received_at")).alias("apart"),
        pl.count("decided_side").alias("decided"),
    )
    is_pair = (pl.col("requests") == 1) & (pl.col("completions") == 1) & (pl.col("apart") <= timeout)
    is_uncontested = (pl.col("decided") == 0) & ((pl.col("rows") == 1) | ((pl.col("rows") == 2) & is_pair))
    uncontested = counted.filter(is_uncontested)
    contested = rows.join(counted.filter(~is_uncontested), on=KEY, how="semi")
    request, completion = uncontested["begun"], uncontested["ended"]
    received_us = rows["received_at"].dt.epoch("us")
    event_time = rows["event_time"]
    pairs = uncontested.select(
        *KEY,
        rows["lsn"].gather(request).alias("request_lsn"),
        rows["lsn"].gather(completion).alias("completion_lsn"),
        received_us.gather(request).alias("request_us"),
        received_us.gather(completion).alias("completion_us"),
        pl.coalesce(event_time.gather(completion), event_time.gather(request)).alias("event_time"),
        *[rows[name].gather(request) for name in ("user_id", "model")],
        *[rows[name].gather(completion) for name in ("status", *TOKENS)],
    )
    return pairs, contested


def pair_frames(spark: SparkSession, rows: pl.DataFrame, timeout: timedelta) -> tuple[DataFrame, DataFrame | None]:
    """Both parts of `split` as `resolve` takes them; None for contested rows when there are none."""
    pairs, contested = split(rows, timeout)
    return spark.createDataFrame(pairs.to_arrow()), (
        None if contested.is_empty() else spark.createDataFrame(contested.to_arrow())
    )
