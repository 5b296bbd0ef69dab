"""The F that a batch of journal rows may decide with: that of the last commit that has been read completely.

A row's F is that of its commit's end. A batch may end inside a commit, and the rows behind the cut were received before
that F: deciding by it could give up on a request whose partner is in the journal.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl


def batch_frontier(
    rows: pl.DataFrame, *, ends_table: bool, before: datetime | None, preceding: datetime | None
) -> datetime | None:
    """F after `rows` (lsn, frontier), which go on where F was `before`. It never steps back.

    Only at the table's end it is certain that the last commit is whole; else all that shares its F may go on behind the
    cut. Then F comes with a later batch, and decides the same: with the next one, if its rows say another F than the
    row that is `preceding` them (None: unknown). Batches that end just where commits do would never say it.
    """
    last = last_frontier(rows)
    is_held = pl.lit(ends_table) | (pl.col("frontier") != pl.lit(last, pl.Datetime("us", "UTC")))
    held = rows.select(pl.col("frontier").filter(is_held).max()).item()
    passed = preceding if last is not None and preceding != last else None
    return max((frontier for frontier in (before, passed, held) if frontier is not None), default=None)


def last_frontier(rows: pl.DataFrame) -> datetime | None:
    """The frontier of the last of `rows` (lsn, frontier); None without any."""
    last: datetime | None = rows.select(pl.col("frontier").sort_by("lsn").last()).item()
    return last
