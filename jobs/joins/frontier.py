"""Which F a batch of journal rows may decide with: that of the last commit that it and its predecessors hold whole.

A row's F is that of its commit's end. A batch may end inside a commit, and what is behind the cut was received before
that F: somebody would be given up whose partner is there.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl


def held_frontier(rows: pl.DataFrame, *, ends_table: bool, before: datetime | None) -> datetime | None:
    """F after `rows` (lsn, frontier), which go on where F was `before`. It never steps back.

    Only at the table's end it is certain that the last commit is whole; else all that shares its F may go on behind the
    cut. Then F comes with a later batch, and decides the same.
    """
    last = pl.col("frontier").get(pl.col("lsn").arg_max())
    is_held = pl.lit(ends_table) | (pl.col("frontier") != last)
    held = rows.select(pl.col("frontier").filter(is_held).max()).item() if len(rows) else None
    return max((frontier for frontier in (before, held) if frontier is not None), default=None)
