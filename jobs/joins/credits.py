"""Credits: what is subtracted from the billed quantities of an outcome. Only an audit adds them, never joins."""

from __future__ import annotations

import polars as pl

from metering.pricing import BILLED_AS_PART

CREDITS = "credits"
"""A column of outcomes: a list of (meter, credit). A null credit takes off all; a null list takes off nothing."""
CREDIT = pl.Decimal(38, 6)
KIND = pl.List(pl.Struct({"meter": pl.String(), "credit": CREDIT}))
UNCOUNTED = "uncounted"
"""A column of outcomes: the list of meters that count another outcome of the same content (`once_per`); null: none."""


def credited(listed: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Entries (row, meter, quantity, version_lsn, …) of outcomes that have these rows' numbers → the same with less.

    A credit is limited to what the meter bills itself: units that another meter bills, because they are
    part of it or it is part of them (`containment`), stay with that one.
    """
    if CREDITS not in outcomes.columns or outcomes[CREDITS].null_count() == len(outcomes):
        return listed
    given = _entries(outcomes, CREDITS).unnest(CREDITS).with_columns(is_credited=pl.lit(value=True))
    is_elsewhere = (pl.col("version_lsn") <= BILLED_AS_PART).fill_null(value=False)
    taken = pl.min_horizontal(pl.coalesce("credit", "quantity"), "quantity")
    is_less = pl.col("is_credited").fill_null(value=False) & ~is_elsewhere & pl.col("quantity").is_not_null()
    quantity = pl.when(is_less).then(pl.col("quantity") - taken).otherwise("quantity")
    return (
        listed.join(given, on=["row", "meter"], how="left", maintain_order="left")
        .with_columns(quantity.cast(listed.schema["quantity"]))
        .select(listed.columns)
    )


def counted(listed: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """The same entries, with quantity 0 of each meter that is UNCOUNTED; other meters are unchanged."""
    if UNCOUNTED not in outcomes.columns or outcomes[UNCOUNTED].null_count() == len(outcomes):
        return listed
    given = _entries(outcomes, UNCOUNTED).rename({UNCOUNTED: "meter"}).with_columns(is_uncounted=pl.lit(value=True))
    is_zero = pl.col("is_uncounted").fill_null(value=False) & pl.col("quantity").is_not_null()
    nothing = pl.lit(0, pl.Int32).cast(listed.schema["quantity"])
    return (
        listed.join(given, on=["row", "meter"], how="left", maintain_order="left")
        .with_columns(quantity=pl.when(is_zero).then(nothing).otherwise("quantity"))
        .select(listed.columns)
    )


def _entries(outcomes: pl.DataFrame, column: str) -> pl.DataFrame:
    """Each entry of a column of lists, with the number of its `row`."""
    rows = outcomes.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), column)
    return rows.filter(pl.col(column).list.len() > 0).explode(column)
