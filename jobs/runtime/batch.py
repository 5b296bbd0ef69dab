"""The proof that a batch holds every row of a table from the position on, exactly once.

A count with the lowest and highest lsn does not prove it: a duplicate row hides a missing one. So each row is an edge
from its lsn to the next, and the edges must form one chain: under exclusive or, the inner ends cancel out, and only the
two ends of the chain are left. With 64-bit hashes no other set of as many rows gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from jobs.runtime.errors import Refused


@dataclass(frozen=True)
class LsnRange:
    """The rows [first, next) of a table, without a hole, and columns of the last one (instants may be microseconds)."""

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


def runs_in(lsn: pa.ChunkedArray) -> pl.DataFrame:
    """The runs of consecutive lsns (first, rows) in a part of a batch; an lsn that is there twice begins a new one."""
    ordered = pl.DataFrame({"lsn": pl.Series(lsn).sort()})
    run = (pl.col("lsn").diff() != 1).fill_null(value=True).cum_sum().alias("run")
    return ordered.group_by(run).agg(first=pl.min("lsn"), rows=pl.len().cast(pl.Int64)).select("first", "rows")


def seen_in_runs(runs: pl.DataFrame) -> Seen:
    """What a batch holds, by the runs of all its parts; as exact as by its lsns themselves."""
    if runs.is_empty():
        return Seen(0, None, None, is_chain=True)
    ordered = runs.sort("first")
    ends = ordered["first"] + ordered["rows"]
    is_apart = (ordered["first"].slice(1) >= ends.slice(0, len(ordered) - 1)).all()
    return Seen(int(ordered["rows"].sum()), ordered["first"][0], int(ends.max()) - 1, is_apart)  # type: ignore[arg-type]


def contiguous(position: int, seen: Seen, job: str) -> LsnRange:
    """The range of a cut batch. Raises Refused when rows are missing before or inside it, or are there twice."""
    if not seen.proves(position):
        twice = "" if seen.is_chain else ", of which some are twice in it and others are missing"
        raise Refused(
            f"{job} is at lsn {position}, but the batch holds {seen.rows} rows from {seen.lowest} to {seen.highest}"
            f"{twice}, and using it would lose rows; start {job} again: it continues from its own position. If this "
            "happens again, restore the table that it reads"
        )
    return LsnRange(position, position if seen.highest is None else seen.highest + 1)


def broken_edges(lsn: Column) -> Column:
    """An aggregate: 0 when the rows' edges are one chain from the lowest lsn to the one after the highest."""
    edges = F.bit_xor(F.xxhash64(lsn).bitwiseXOR(F.xxhash64(lsn + 1)))
    return edges.bitwiseXOR(F.xxhash64(F.min(lsn)).bitwiseXOR(F.xxhash64(F.max(lsn) + 1)))
