"""One action per micro-batch: its summary as Arrow, and the proof that every row from the position on is in it once.

A count, a lowest and a highest lsn do not prove that: one row twice hides one that is missing. So each row is an edge
from its lsn to the next, and the edges must be one chain: joined by exclusive or, what all edges begin and end with
cancels out, and only the two ends of the chain are left. With hashes of 64 bits no other set of as many rows does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import structlog
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from jobs.runtime.errors import Refused

log = structlog.get_logger()


@dataclass(frozen=True)
class LsnRange:
    """The rows [first, next) of a table, without a hole, and columns of the last one (instants in microseconds)."""

    first: int
    next: int
    last: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def records(self) -> int:
        """How many rows."""
        return self.next - self.first


@dataclass(frozen=True)
class Seen:
    """What a batch holds: how many rows, their lowest and highest lsn, and whether no two of them have the same."""

    rows: int
    lowest: int | None
    highest: int | None
    is_chain: bool

    def proves(self, position: int) -> bool:
        """Whether every row from `position` to the highest is there once."""
        if self.lowest is None or self.highest is None:
            return self.rows == 0
        return self.is_chain and self.lowest == position and self.rows == self.highest - self.lowest + 1


def seen_in(lsn: pa.ChunkedArray) -> Seen:
    """What a batch holds, by its lsns themselves."""
    values = pl.Series(lsn)
    return Seen(len(values), values.min(), values.max(), values.n_unique() == len(values))  # type: ignore[arg-type]


def cut(batch: DataFrame, position: int) -> DataFrame:
    """The rows that are new to a sink at `position`."""
    return batch.where(F.col("lsn") >= F.lit(position))


def contiguous(position: int, seen: Seen, job: str) -> LsnRange:
    """The range of a cut batch. Raises Refused when rows are missing before or inside it, or are there twice."""
    if not seen.proves(position):
        twice = "" if seen.is_chain else ", of which some are twice in it and others are missing"
        raise Refused(
            f"{job} is at lsn {position}, but the batch holds {seen.rows} rows from {seen.lowest} to {seen.highest}"
            f"{twice}, and using it would lose rows; start {job} again: it goes on from its own position. If this "
            "comes back, restore the table that it reads"
        )
    return LsnRange(position, position if seen.highest is None else seen.highest + 1)


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


def broken_edges(lsn: Column) -> Column:
    """An aggregate: 0 when the rows' edges are one chain from the lowest lsn to the one after the highest."""
    edges = F.bit_xor(F.xxhash64(lsn).bitwiseXOR(F.xxhash64(lsn + 1)))
    return edges.bitwiseXOR(F.xxhash64(F.min(lsn)).bitwiseXOR(F.xxhash64(F.max(lsn) + 1)))


def _value(name: str, instants: set[str]) -> Column:
    return F.unix_micros(name) if name in instants else F.col(name)
