"""Which events came from a device that did not say when it sent them: their clocks could not be judged."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from jobs.ingestion.rules import glob_expression
from jobs.streams import Disposition


def uncorrected_events(rows: pl.DataFrame, devices: Iterable[str]) -> int:
    """How many accepted journal rows are of a source that `devices` (patterns) match, and have no clock offset."""
    without_offset = rows.filter(
        (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("clock_offset_ms").is_null()
    ).drop_nulls("source")
    is_device = re.compile(glob_expression(devices)).match
    found = without_offset.group_by("source").len()
    return sum(count for source, count in found.iter_rows() if is_device(source))
