"""Counts of first-reception marks by what became of them: why history may be treated as current events."""

from __future__ import annotations

import polars as pl
import structlog

from jobs.ingestion.receptions import is_of_the_past
from jobs.runtime.job import Counts
from metering.vocabulary import Reason, ReceptionMark
from monitoring import metrics

log = structlog.get_logger()


def mark_counts(rows: pl.DataFrame) -> Counts:
    """How many marks of journal rows count, and how many are of unlisted sources, which are also logged."""
    marked = rows.filter(pl.col("reception_mark").is_not_null())
    is_unbelieved = (pl.col("reason") == Reason.INVALID_RECEPTION).fill_null(False)
    ignored = len(marked.filter(pl.col("first_received_at").is_null() & ~is_unbelieved))
    if ignored:
        log.warning("marks of sources that backfill.sources does not list are ignored", records=ignored)
    return {
        (metrics.RECEPTION_MARKS, ReceptionMark.TRUSTED): len(marked.filter(is_of_the_past())),
        (metrics.RECEPTION_MARKS, ReceptionMark.IGNORED): ignored,
    }
