"""One action per micro-batch: what is new of it, and its summary as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from jobs.runtime.batch import LsnRange, Seen, broken_edges, contiguous, seen_in

log = structlog.get_logger()


def cut(batch: DataFrame, position: int) -> DataFrame:
    """The rows that are new to a sink at `position`."""
    return batch.where(F.col("lsn") >= F.lit(position))


def reduce_once(
    batch: DataFrame,
    position: int,
    job: str,
    build: Callable[[DataFrame], DataFrame],
    of_last_row: Iterable[str] = (),
) -> tuple[pa.Table, LsnRange]:
    """What `build` makes of the rows from `position` on, and their range, in a single Spark action.

    A second action cuts the batch when it begins with rows that are known, which only the first one after a start does.
    The cut is not always there because Spark writes the position into the code that it compiles for a batch.
    """
    summary, seen, last = _reduced(batch, build, of_last_row)
    if seen.lowest is not None and seen.highest is not None and seen.lowest < position:
        if seen.highest < position:
            return summary.slice(0, 0), LsnRange(position, position)
        batch = cut(batch, position)
        summary, seen, last = _reduced(batch, build, of_last_row)
    if not seen.proves(position):
        # What Spark observes counts a task twice that ran twice, as after the loss of an executor; its results do not.
        log.warning(
            "the batch was counted again, because Spark's own count of it was not reliable", job=job, observed=str(seen)
        )
        seen = seen_in(batch.select("lsn").toArrow()["lsn"])
    rows = contiguous(position, seen, job)
    return summary, LsnRange(rows.first, rows.next, last)


def _reduced(
    batch: DataFrame, build: Callable[[DataFrame], DataFrame], of_last_row: Iterable[str]
) -> tuple[pa.Table, Seen, dict[str, Any]]:
    lsn = F.col("lsn")
    instants = {f.name for f in batch.schema.fields if isinstance(f.dataType, TimestampType)}
    observation = Observation()
    observed = batch.observe(
        observation,
        F.count(lsn).alias("rows"),
        F.min(lsn).alias("lowest"),
        F.max(lsn).alias("highest"),
        broken_edges(lsn).alias("broken"),
        *[F.max_by(_value(name, instants), lsn).alias(f"last_{name}") for name in of_last_row],
    )
    summary = build(observed).toArrow()
    found = observation.get
    seen = Seen(found["rows"] or 0, found["lowest"], found["highest"], (found["broken"] or 0) == 0)
    return summary, seen, {name: found[f"last_{name}"] for name in of_last_row}


def _value(name: str, instants: set[str]) -> Column:
    return F.unix_micros(name) if name in instants else F.col(name)
