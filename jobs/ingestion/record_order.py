"""Rows in the order of places in the log, and of receipt. To see that they are costs a fiftieth of sorting them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

RECEIVED_AT = "received_at"


def by_columns(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Rows in the order of these columns (not null). Tasks give them so mostly."""
    return rows if _are_ascending(rows, columns) else rows.sort(*columns)


def by_reception(rows: pl.DataFrame, place: Sequence[str]) -> pl.DataFrame:
    """Rows (received_at, `place`: not null) in the order of receipt, and of their place where that is the same."""
    if _are_ascending(rows, place):
        return rows.sort(RECEIVED_AT, maintain_order=True)
    return rows.sort(RECEIVED_AT, *place)


def _are_ascending(rows: pl.DataFrame, columns: Sequence[str]) -> bool:
    """Whether each row comes after the one before it, by the first of the columns in which they differ."""
    is_after = pl.lit(value=False)
    for name in reversed(columns):
        column, before = pl.col(name), pl.col(name).shift()
        is_after = (column > before) | ((column == before) & is_after)
    # The first row has none before it: null, which `all` passes over.
    return bool(rows.select(is_after.all()).item())
