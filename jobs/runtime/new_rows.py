"""The part of a batch that is new: by lsn for a table, by offsets for a topic.

These are two kinds of position. A table's rows are numbered without a hole, so a batch is cut and proved here. A topic
has one position per partition, and offsets without a record in between: the broker is asked about missing offsets
before the ledger moves (`OffsetLedger`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from jobs.runtime.batch import LsnRange, Seen, broken_edges, contiguous, seen_in

log = structlog.get_logger()

Build = Callable[[DataFrame], DataFrame]
"""What a job's `build` makes of a batch, its configuration given."""


def new_rows(
    batch: DataFrame,
    position: int,
    job: str,
    build: Build,
    of_last_row: Iterable[str] = (),
    *,
    keeps_rows: bool = False,
) -> tuple[pa.Table, LsnRange]:
    """What `build` makes of a table's rows from `position` on, and their range, in a single Spark action.

    A `build` that `keeps_rows`, all of them with lsn and the columns `of_last_row`, is proved by what it gives; of one
    that reduces them Spark observes what it reads, which costs more where rows come anyway. Raises Refused when rows
    are missing before or among the new ones, or are there twice.

    A second action cuts the batch when it begins with rows that are known, which only the first one after a start does.
    The cut is not always there because Spark writes the position into the code that it compiles for a batch.
    """
    read = _with_rows if keeps_rows else _reduced
    found, seen, last = read(batch, build, of_last_row)
    if seen.lowest is not None and seen.highest is not None and seen.lowest < position:
        if seen.highest < position:
            return found.slice(0, 0), LsnRange(position, position)
        batch = batch.where(f"lsn >= {position}")
        found, seen, last = read(batch, build, of_last_row)
    if not seen.proves(position) and not keeps_rows:
        # What Spark observes counts a task twice that ran twice, as after the loss of an executor; its results do not.
        log.warning(
            "the batch was counted again, because Spark's own count of it was not reliable", job=job, observed=str(seen)
        )
        seen = seen_in(batch.select("lsn").toArrow()["lsn"])
    rows = contiguous(position, seen, job)
    return found, LsnRange(rows.first, rows.next, last)


def driver_new_rows(
    rows: pa.Table, position: int, job: str, of_last_row: Iterable[str] = ()
) -> tuple[pa.Table, LsnRange]:
    """Those of a few rows that stand at `position` or after it, and their range, without any Spark.

    Raises Refused when rows are missing before or among them, or are there twice.
    """
    new = rows.filter(pc.field("lsn") >= position)
    seen, last = _observed_rows(new, of_last_row)
    found = contiguous(position, seen, job)
    return new, LsnRange(found.first, found.next, last)


def in_parts(rows: pa.Table, most: int, counted: Sequence[str], max_counted: int) -> Iterator[pa.Table]:
    """The rows of a table by lsn, so few at once that they and what they say in the columns `counted` are not too many.

    At most `most` rows, which with their values that are not null are at most `max_counted`, unless one row is more.
    Each part has as many as it may. Nothing of no rows.
    """
    values = len(rows) + sum(len(rows) - rows[name].null_count for name in counted)
    if len(rows) <= most and values <= max_counted:
        if len(rows):
            yield rows
        return
    ordered = rows.sort_by("lsn")
    value_counts = pl.DataFrame(ordered.select(["lsn", *counted])).select(pl.sum_horizontal(pl.all().is_not_null()))
    values_until = value_counts.to_series().cum_sum()
    first, before = 0, 0
    while first < len(ordered):
        fitting = int(values_until.search_sorted(before + max_counted, side="right")) - first
        length = min(max(1, fitting), most)
        yield ordered.slice(first, length)
        first += length
        before = int(values_until[first - 1])


def new_records(records: pl.DataFrame, positions: Mapping[str, Mapping[int, int]]) -> pl.DataFrame:
    """Those records (PLACE, …) that stand at or above their topic's next offset per partition; all of one without.

    Cut on the driver, because positions inside Spark's plan would make it compile new code for every batch.
    """
    for topic, next_offsets in positions.items():
        if next_offsets:
            position = pl.col("partition").replace_strict(next_offsets, default=0, return_dtype=pl.Int64)
            records = records.filter((pl.col("topic") != topic) | (pl.col("offset") >= position))
    return records


def _with_rows(batch: DataFrame, build: Build, of_last_row: Iterable[str]) -> tuple[pa.Table, Seen, Mapping[str, Any]]:
    rows = build(batch).toArrow()
    return rows, *_observed_rows(rows, of_last_row)


def _observed_rows(rows: pa.Table, of_last_row: Iterable[str]) -> tuple[Seen, Mapping[str, Any]]:
    seen = seen_in(rows["lsn"])
    if seen.highest is None:
        return seen, {}
    last = rows.select(list(of_last_row)).slice(pc.index(rows["lsn"], seen.highest).as_py(), 1)
    return seen, last.to_pylist()[0]


def _reduced(batch: DataFrame, build: Build, of_last_row: Iterable[str]) -> tuple[pa.Table, Seen, Mapping[str, Any]]:
    watched, seen_of = observed(batch, of_last_row)
    return build(watched).toArrow(), *seen_of()


def observed(
    batch: DataFrame, of_last_row: Iterable[str]
) -> tuple[DataFrame, Callable[[], tuple[Seen, Mapping[str, Any]]]]:
    """The batch, and what Spark has seen of its lsns and of its last row: to be asked for once the batch was read."""
    lsn = F.col("lsn")
    instants = {f.name for f in batch.schema.fields if isinstance(f.dataType, TimestampType)}
    names, observation = tuple(of_last_row), Observation()
    watched = batch.observe(
        observation,
        F.count(lsn).alias("rows"),
        F.min(lsn).alias("lowest"),
        F.max(lsn).alias("highest"),
        broken_edges(lsn).alias("broken"),
        *[F.max_by(_value(name, instants), lsn).alias(f"last_{name}") for name in names],
    )

    def seen() -> tuple[Seen, Mapping[str, Any]]:
        found = observation.get
        chain = Seen(found["rows"] or 0, found["lowest"], found["highest"], (found["broken"] or 0) == 0)
        return chain, {name: found[f"last_{name}"] for name in names}

    return watched, seen


def _value(name: str, instants: set[str]) -> Column:
    return F.unix_micros(name) if name in instants else F.col(name)
