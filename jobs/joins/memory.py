"""What joins must remember between batches: requests and completions that a later row can still meet.

Derived from the journal and usage at start, carried as one table, bounded by the completion timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import polars as pl

from jobs.streams import Outcome

KEY = ("account", "request_id")
CARRIED: dict[str, pl.DataType | type[pl.DataType]] = {
    "lsn": pl.Int64,
    "type": pl.String,
    "account": pl.String,
    "request_id": pl.String,
    "user_id": pl.String,
    "model": pl.String,
    "status": pl.String,
    "input_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "event_time": pl.Datetime("us", "UTC"),
    "received_at": pl.Datetime("us", "UTC"),
    "decided_side": pl.String,
}
"""Rows of the journal with `decided_side`: null while a row waits, else the side on which it won its key."""


class Memory:
    """Winners of their keys (CARRIED), waiting or decided, that rows at or after the frontier can meet."""

    def __init__(self, timeout: timedelta, rows: pl.DataFrame | None = None) -> None:
        self._timeout = timeout
        self._rows = (
            pl.DataFrame(schema=CARRIED) if rows is None else rows.select(pl.col(n).cast(t) for n, t in CARRIED.items())
        )

    def involved(self, batch: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
        """The batch's rows and all remembered rows that they, or the passing of time, can decide (CARRIED)."""
        overdue = pl.col("decided_side").is_null() & self._before(frontier)
        met = self._rows.join(batch.select(KEY).unique(), on=KEY, how="semi")
        due = self._rows.filter(overdue).join(met, on="lsn", how="anti")
        of_due = self._rows.join(due.select(KEY).unique(), on=KEY, how="semi").join(met, on="lsn", how="anti")
        new = batch.with_columns(pl.lit(None, pl.String).alias("decided_side"))
        return pl.concat([part.select(*CARRIED) for part in (met, of_due, new)])

    def learn(self, involved: pl.DataFrame, outcomes: pl.DataFrame, frontier: datetime | None) -> None:
        """Take over what became of the involved rows: `outcomes` has outcome, request_lsn, completion_lsn."""
        sides = decided_sides(outcomes)
        kept = involved.join(sides, on="lsn", how="left").with_columns(
            pl.coalesce("side", "decided_side").alias("decided_side")
        )
        untouched = self._rows.join(involved, on="lsn", how="anti")
        rows = pl.concat([untouched, kept.filter(pl.col("decided_side").ne_missing("none")).select(*CARRIED)])
        self._rows = rows.filter(self._before(frontier).not_())

    def _before(self, frontier: datetime | None) -> pl.Expr:
        return pl.lit(False) if frontier is None else pl.col("received_at") + self._timeout < frontier

    def waiting(self) -> Mapping[str, int]:
        """How many rows wait, and the lowest lsn among them (0 when none does)."""
        lsn = self._rows.filter(pl.col("decided_side").is_null())["lsn"]
        return {"waiting": len(lsn), "waiting.lsn": int(lsn.min() or 0)}  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._rows)


def decided_sides(outcomes: pl.DataFrame) -> pl.DataFrame:
    """(lsn, side) of every row that an outcome names: the side on which it won, or `none` when nothing can meet it."""
    matched = pl.col("outcome") == Outcome.MATCHED
    over = pl.col("outcome").is_in([Outcome.SUPERSEDED, Outcome.ABANDONED, Outcome.ORPHANED])
    with_itself = matched & (pl.col("request_lsn") == pl.col("completion_lsn"))
    parts = [
        outcomes.filter(with_itself).select(pl.col("request_lsn").alias("lsn"), pl.lit("both").alias("side")),
        outcomes.filter(matched & ~with_itself).select(
            pl.col("request_lsn").alias("lsn"), pl.lit("request").alias("side")
        ),
        outcomes.filter(matched & ~with_itself).select(
            pl.col("completion_lsn").alias("lsn"), pl.lit("completion").alias("side")
        ),
        outcomes.filter(over).select(
            pl.coalesce("request_lsn", "completion_lsn").alias("lsn"), pl.lit("none").alias("side")
        ),
    ]
    return pl.concat(parts)
