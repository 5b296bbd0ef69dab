"""Texts → instants: RFC 3339, with a date, a time and an offset; leap seconds are refused."""

from __future__ import annotations

import polars as pl

from jobs.ingestion.rules import RFC3339

OFFSET_BYTES = 6
"""Of `+05:30`."""
MAX_OFFSET_MINUTES = 18 * 60
UTC = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-5][0-9](?:\.[0-9]+)?Z\z"
"""Part of RFC3339: no leap second, no offset but `Z`, all in capitals."""
_LOCAL = "%Y-%m-%dT%H:%M:%S%.f"
_UTC_US = pl.col("text").str.strip_suffix("Z").str.to_datetime(_LOCAL, time_unit="us", strict=False).to_physical()


def instants_us(texts: pl.Series) -> pl.Series:
    """Microseconds since 1970 of each text (fractions below are cut off); null where it is invalid."""
    if texts.null_count() == len(texts):
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(texts))
    if texts.str.contains(UTC).all():
        # As nearly all are written. One expression: a few texts cost as much as the number of calls.
        return texts.alias("text").to_frame().select(_UTC_US).to_series()
    named = texts.str.contains(rf"\A(?:{RFC3339})\z")
    upper = texts.set(~named.fill_null(value=False), None).str.to_uppercase()
    is_utc = upper.str.ends_with("Z")
    if is_utc.all():
        return _local_us(upper.str.slice(0, upper.str.len_bytes() - 1))
    cut = pl.when(is_utc).then(1).otherwise(OFFSET_BYTES)
    parts = pl.select(upper=upper, is_utc=is_utc).with_columns(
        local=pl.col("upper").str.slice(0, pl.col("upper").str.len_bytes() - cut),
        offset=pl.when(~pl.col("is_utc")).then(pl.col("upper").str.tail(OFFSET_BYTES)),
    )
    hours, minutes = (pl.col("offset").str.slice(start, 2).cast(pl.Int64) for start in (1, 4))
    ahead = (
        pl.when(minutes > 59)
        .then(None)
        .when(hours * 60 + minutes > MAX_OFFSET_MINUTES)
        .then(None)
        .when(pl.col("offset").str.starts_with("-"))
        .then(-(hours * 60 + minutes))
        .otherwise(hours * 60 + minutes)
    )
    ahead_us = pl.when("is_utc").then(0).otherwise(ahead) * 60_000_000
    local_us = pl.Series("local_us", _local_us(parts["local"]))
    return parts.select(local_us - ahead_us).to_series()


def _local_us(texts: pl.Series) -> pl.Series:
    """Of a date and a time without offset."""
    # The calendar of Polars knows a sixtieth second.
    is_leap = texts.str.slice(17, 2) == "60"
    if is_leap.any():
        texts = texts.set(is_leap.fill_null(value=False), None)
    return texts.str.to_datetime(_LOCAL, time_unit="us", strict=False).to_physical()
