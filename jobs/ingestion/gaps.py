"""Offsets without a row in a batch: before its first row in a partition, and between two of its rows."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from jobs.runtime.kafka.protocol.absent_offsets import Gap


def gaps_in(rows: pl.DataFrame, starts: Mapping[int, int]) -> list[Gap]:
    """Gaps in rows (partition, offset, in this order), each partition's first offset being that of `starts`."""
    partition, offset = pl.col("partition"), pl.col("offset")
    start = partition.replace_strict(starts, default=0, return_dtype=pl.Int64)
    is_same = (partition == partition.shift(1)).fill_null(value=False)
    first = pl.when(is_same).then(offset.shift(1) + 1).otherwise(start).alias("first")
    gaps = rows.select(partition, first, offset.alias("end")).filter(pl.col("first") < pl.col("end"))
    return [Gap(*gap) for gap in gaps.iter_rows()]
