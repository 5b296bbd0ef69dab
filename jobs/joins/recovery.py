"""The state of joins, derived from the journal and usage at start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise

import polars as pl

from jobs.joins.frontier import last_frontier
from jobs.joins.memory import CARRIED, Memory, Schema, column_of
from jobs.joins.timeouts import Timeouts
from jobs.journal.families import family
from jobs.runtime.effective_rules import History
from jobs.usage_members import plain
from metering.contracts.includes import COLUMN
from metering.vocabulary import BILLABLE, Disposition, UsageCause

CLOCK_SKEW = timedelta(days=1)
"""A row's log date is the driver's, its received_at the broker's: their clocks may differ."""
_ADDED = ("timeout_us", "merit", "remembered", "decided_side")
_RANKED_BY = "usage_source"


def columns_read(schema: Schema) -> tuple[str, ...]:
    """Of the journal, for what is remembered of a row (`memory.carried`)."""
    return tuple(dict.fromkeys(("type", _RANKED_BY, *(column_of(name) for name in schema if name not in _ADDED))))


def as_carried(rows: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Rows of the journal with the names and types under which they are remembered.

    Rows of a journal that has no column of conventions yet have none.
    """
    if COLUMN not in rows.columns:
        rows = rows.with_columns(pl.lit(None, pl.String).alias(COLUMN))
    return rows.with_columns(
        _as_kind(column_of(name), rows.schema[column_of(name)], schema[name]).alias(name)
        for name in schema
        if name not in CARRIED
    )


def _as_kind(column: str, kind: pl.DataType, wanted: pl.DataType | type[pl.DataType]) -> pl.Expr:
    """A column cast to the wanted kind; a decimal becomes a text without trailing zeros."""
    is_text = wanted in (pl.String, pl.String()) and kind.is_decimal()
    return plain(pl.col(column)) if is_text else pl.col(column).cast(wanted)


def is_paired() -> pl.Expr:
    """Whether a row of the journal is a request or completion that counts."""
    is_accepted = (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("request_id").is_not_null()
    return is_accepted & family().is_in(list(BILLABLE))


@dataclass(frozen=True)
class RecoverySource:
    """Both tables, the position and F that usage was made from, and the lowest lsn that waited then (None: no row).

    F is None inside the first commit that has events: then every row below the position is remembered.
    """

    journal: pl.LazyFrame
    usage: pl.LazyFrame
    position: int
    frontier: datetime | None
    waiting_from: int | None
    schema: Schema
    """What is remembered of a row (`memory.carried`)."""


def recovered_rows(past: RecoverySource, history: History) -> Memory:
    """All rows that no usage row names, however long they wait; and those that were decided within their timeout of F.

    Which rows are pending never depends on a timeout: a changed one would lose them.
    """
    timeouts = Timeouts(history)
    rows = pl.concat(_candidates(past, timeouts)).unique("lsn").sort("lsn")
    if rows.is_empty():
        return Memory.empty(past.schema)
    rows = rows.with_columns(timeouts.of_row())
    outcomes = _outcomes_since(past, rows["received_at"].min()).with_columns(timeouts.of_pair())  # type: ignore[arg-type]
    involved = Memory.empty(past.schema).involved(rows, None)
    return Memory.empty(past.schema).after(involved, outcomes, past.frontier)


def preceding_frontier(journal: pl.LazyFrame, position: int) -> datetime | None:
    """The F of the row before the position; None where retention has removed it."""
    return last_frontier(journal.filter(pl.col("lsn") == position - 1).select("lsn", "frontier").collect())


def _candidates(past: RecoverySource, timeouts: Timeouts) -> list[pl.DataFrame]:
    """Rows of the journal below the position: all from the lowest that waits on, and the recent ones."""
    below = (pl.col("lsn") < past.position) & is_paired()
    parts = []
    if past.waiting_from is not None:
        parts.append(pl.col("lsn") >= past.waiting_from)
    bounds = [0, *(configured.first for configured in timeouts.configured[1:]), past.position]
    # A row may have met one that came before a change, and waited longer: then both are remembered as long.
    longest_us = accumulate((configured.longest_us for configured in timeouts.configured), max)
    for max_us, (begin, end) in zip(longest_us, pairwise(bounds), strict=True):
        held = (pl.col("lsn") >= begin) & (pl.col("lsn") < end)
        parts.append(held & _since(past.frontier, max_us))
    stored = past.journal.collect_schema().names()
    # joins may start before ingestion has given an older journal the columns of this version.
    read = columns_read(past.schema)
    kinds = {_RANKED_BY: pl.String, **{column_of(name): kind for name, kind in past.schema.items()}}
    added = [pl.lit(None, kinds[name]).alias(name) for name in read if name not in stored]
    journal = past.journal.with_columns(added)
    found = [journal.filter(part & below).select(read).with_columns(family()).collect() for part in parts]
    return [as_carried(rows, past.schema) for rows in found]


def _since(frontier: datetime | None, longest_us: int) -> pl.Expr:
    if frontier is None:
        return pl.lit(True)
    oldest = frontier - timedelta(microseconds=longest_us)
    return (pl.col("received_at") >= oldest) & (pl.col("log_date") >= (oldest - CLOCK_SKEW).date())


def _outcomes_since(past: RecoverySource, oldest: datetime) -> pl.DataFrame:
    """Outcomes that may name a row received at `oldest` or later: an outcome is a fact when its last part is.

    Outcomes that an audit added are not joins' decisions: the stream continues as if there had been no audit.
    """
    logged = pl.col("log_date") >= (oldest - CLOCK_SKEW).date()
    is_decided_here = pl.col("cause") == UsageCause.STREAM.value
    return (
        past.usage.filter((pl.col("received_at") >= oldest) & logged & is_decided_here)
        .select("outcome", "request_lsn", "completion_lsn", "model")
        .collect()
    )
