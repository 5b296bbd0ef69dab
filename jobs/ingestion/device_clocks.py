"""Which events came from a device, and which of those did not say when they were sent: no clock can be judged."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from jobs.ingestion.rules import glob_expression
from metering.words import Disposition


def uncorrected_events(rows: pl.DataFrame, devices: Iterable[str]) -> int:
    """How many accepted journal rows are of a source that `devices` (patterns) match, and have no clock offset."""
    without_offset = rows.filter(
        (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("clock_offset_ms").is_null()
    ).drop_nulls("source")
    return int(is_device(without_offset["source"], devices).sum())


def is_device(sources: pl.Series, devices: Iterable[str]) -> pl.Series:
    """For each source whether it is a device's. Each distinct source is looked at once."""
    patterns = tuple(devices)
    distinct = sources.drop_nulls().unique() if patterns else sources.clear()
    matches = re.compile(glob_expression(patterns)).match
    return sources.is_in([source for source in distinct if matches(source)]).fill_null(value=False)
