"""When a record of the past was first received, by its mark, if the configuration trusts marks of its source.

Marks of other sources are ignored: the record is treated as if it had none. `first_reception` in
tests/specifications/clock.py has the rule row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from jobs.ingestion.rfc3339 import instants_us
from jobs.ingestion.source_patterns import is_listed
from jobs.runtime.kafka.marks import FIRST_RECEIVED, MAX_BYTES
from metering.vocabulary import Reason

if TYPE_CHECKING:
    from jobs.ingestion.config_groups import Backfill

INSTANT = pl.Datetime("us", "UTC")
MAX_CHARACTERS = 64
"""Of a mark that are kept; an instant has fewer."""
NOT_LISTED = f"; its {FIRST_RECEIVED} counts for nothing, as backfill.sources does not list its source"


def mark_texts(marks: pl.Series) -> pl.Series:
    """Marks (binary) as the journal stores them, valid or not; null if too long (`marks`)."""
    if marks.null_count() == len(marks):
        return pl.Series(marks.name, [None], pl.String).new_from_index(0, len(marks))
    kept = [None if mark is None or len(mark) > MAX_BYTES else mark[:MAX_CHARACTERS] for mark in marks]
    texts = [None if mark is None else mark.decode("ascii", errors="replace") for mark in kept]
    return pl.Series(marks.name, [text and text.replace("\0", "\ufffd") for text in texts], pl.String)


def is_of_the_past() -> pl.Expr:
    """Whether a row (first_received_at, replays_lsn) came with a mark that counts, and not as a dead letter again."""
    return pl.col("first_received_at").is_not_null() & pl.col("replays_lsn").is_null()


def with_receptions(records: pl.DataFrame, backfill: Backfill, future_seconds: int) -> pl.DataFrame:
    """Records (source, reception_mark, received_at, first_received_at, reason, violation, …) with their marks applied.

    A mark that counts becomes `first_received_at`, replacing any other, but no later than `received_at`. An
    unbelievable mark is a `reason`.
    """
    marks = records["reception_mark"]
    if marks.null_count() == len(marks):
        return records
    counts = marks.is_not_null() & is_listed(records["source"], backfill.sources)
    at_us = instants_us(marks.set(~counts, None))
    past_seconds = backfill.accept_past_seconds
    ago_us = pl.col("received_at").dt.epoch("us") - pl.lit(at_us)
    problem = (
        pl.when(~pl.lit(counts))
        .then(None)
        .when(pl.lit(at_us).is_null())
        .then(pl.lit("an RFC 3339 instant"))
        .when(ago_us > past_seconds * 1_000_000)
        .then(pl.lit(f"at most {past_seconds} s before it was received (backfill.accept_past_seconds)"))
        .when(ago_us < -future_seconds * 1_000_000)
        .then(pl.lit(f"at most {future_seconds} s after it was received"))
    )
    marked = records.with_columns(problem.alias("_problem"), pl.lit(at_us).cast(INSTANT).alias("_marked_at"))
    is_first = pl.col("reason").is_null() & pl.col("_problem").is_not_null()
    is_believed = pl.col("_problem").is_null() & pl.col("_marked_at").is_not_null()
    return marked.with_columns(
        reason=pl.when(is_first).then(pl.lit(Reason.INVALID_RECEPTION.value)).otherwise("reason"),
        violation=pl.when(is_first).then(FIRST_RECEIVED + ": " + pl.col("_problem")).otherwise("violation"),
        first_received_at=pl.when(is_believed)
        .then(pl.min_horizontal("_marked_at", "received_at"))
        .otherwise("first_received_at"),
    ).drop("_problem", "_marked_at")
