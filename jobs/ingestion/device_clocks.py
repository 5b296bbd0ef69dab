"""Events from devices, and those without a send time: their clock cannot be checked."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from jobs.ingestion.source_patterns import is_listed
from metering.vocabulary import Disposition


def uncorrected_events(rows: pl.DataFrame, devices: Iterable[str]) -> int:
    """How many accepted journal rows are of a source that `devices` (patterns) match, and have no clock offset."""
    without_offset = rows.filter(
        (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("clock_offset_ms").is_null()
    ).drop_nulls("source")
    return int(is_listed(without_offset["source"], devices).sum())
