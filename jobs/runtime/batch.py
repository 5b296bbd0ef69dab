"""One action per micro-batch: its summary as Arrow, and a count that proves nothing is missing before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from jobs.runtime.errors import Refused


@dataclass(frozen=True)
class LsnRange:
    """The rows [first, next) of a table, without a hole."""

    first: int
    next: int

    @property
    def records(self) -> int:
        """How many rows."""
        return self.next - self.first


def cut(batch: DataFrame, position: int) -> DataFrame:
    """The rows that are new to a sink at `position`."""
    return batch.where(F.col("lsn") >= F.lit(position))


def contiguous(position: int, count: int, lowest: int | None, highest: int | None, job: str) -> LsnRange:
    """The range of a cut batch. Raises Refused when rows are missing before or inside it."""
    if count == 0 or lowest is None or highest is None:
        return LsnRange(position, position)
    if lowest != position or count != highest - lowest + 1:
        raise Refused(
            f"{job} is at lsn {position}, but the batch holds {count} rows from {lowest} to {highest}, and folding it "
            f"would lose rows; start {job} again: it continues from its own position. If this comes back, restore "
            "the table that it reads"
        )
    return LsnRange(lowest, highest + 1)


def reduce_once(
    batch: DataFrame, position: int, job: str, build: Callable[[DataFrame], DataFrame]
) -> tuple[pa.Table, LsnRange]:
    """What `build` makes of the rows from `position` on, and their range, in a single Spark action.

    A second action cuts the batch when it begins with rows that are known, which only the first one after a start does.
    The cut is not always there because Spark writes the position into the code that it compiles for a batch.
    """
    summary, count, lowest, highest = _reduced(batch, build)
    if lowest is not None and highest is not None and lowest < position:
        if highest < position:
            return summary.slice(0, 0), LsnRange(position, position)
        summary, count, lowest, highest = _reduced(cut(batch, position), build)
    return summary, contiguous(position, count, lowest, highest, job)


def _reduced(batch: DataFrame, build: Callable[[DataFrame], DataFrame]) -> tuple[pa.Table, int, int | None, int | None]:
    seen = Observation()
    observed = batch.observe(
        seen, F.count("lsn").alias("count"), F.min("lsn").alias("lowest"), F.max("lsn").alias("highest")
    )
    summary = build(observed).toArrow()
    metrics = seen.get
    return summary, metrics["count"] or 0, metrics["lowest"], metrics["highest"]
