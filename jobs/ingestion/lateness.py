"""How late a batch's events came: their first reception minus the end of their minute."""

from __future__ import annotations

import numpy as np
import polars as pl

from jobs.ingestion.receptions import is_of_the_past
from jobs.journal.families import family
from jobs.runtime.job import Lateness
from metering.vocabulary import BILLABLE, Disposition
from monitoring import metrics


def lateness_of(rows: pl.DataFrame) -> Lateness:
    """Lateness of the accepted requests, completions and usage events; 0 where the minute had not ended.

    Records of the past are left out: loading history does not report late events.
    """
    minute_end = pl.col("event_time").dt.truncate("1m") + pl.duration(minutes=1)
    received_at = pl.coalesce("first_received_at", "received_at")
    seconds = (
        rows.lazy()
        .filter((pl.col("disposition") == Disposition.ACCEPTED) & family().is_in(list(BILLABLE)) & ~is_of_the_past())
        .select((received_at - minute_end).dt.total_microseconds().clip(lower_bound=0) / 1_000_000)
        .collect()
        .to_series()
        .to_numpy()
    )
    bounds = metrics.LATENESS.buckets
    counts = np.bincount(np.searchsorted(bounds, seconds, side="left"), minlength=len(bounds) + 1)
    return Lateness(tuple(int(count) for count in counts), float(seconds.sum()))
