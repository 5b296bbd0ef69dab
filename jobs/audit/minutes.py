"""Usage added up by minute, beside the windows and the stragglers that billing made of it: I6."""

from __future__ import annotations

import polars as pl

from jobs.metered import METERED_COLUMNS, metered
from jobs.streams import QUANTITY, UNIT_PRICE

MINUTES_READ = ("outcome", "event_time", "account", "model", "currency", "sign", *METERED_COLUMNS)
SUM = pl.Decimal(38, QUANTITY.scale)
MINUTES = pl.Schema(
    {
        "window_start": pl.Datetime("us", "UTC"),
        "account": pl.String(),
        "model": pl.String(),
        "meter": pl.String(),
        "currency": pl.String(),
        "price_version": pl.Int64(),
        "unit_price": pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale),
        "quantity": SUM,
    }
)
"""Signed quantities by minute, account, model, meter, currency and price version."""
KEY = [name for name in MINUTES if name not in ("unit_price", "quantity")]


def minute_sums(usage: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage (MINUTES_READ, as far as the table has them) → MINUTES; what is 0 says nothing."""
    quantity = pl.col("quantity").cast(SUM)
    return (
        metered(usage.with_columns(window_start=pl.col("event_time").dt.truncate("1m")).lazy())
        .filter(pl.col("quantity") != 0)
        .with_columns(quantity=pl.when(pl.col("sign") < 0).then(-quantity).otherwise(quantity))
        .group_by(KEY)
        .agg(pl.max("unit_price"), pl.sum("quantity"))
        .select(MINUTES.names())
        .collect()
    )


def unequal_minutes(sums: pl.DataFrame, windows: pl.DataFrame, dropped: pl.DataFrame) -> list[str]:
    """MINUTES of usage, of windows, and of stragglers that are in none → a sentence for each that differs."""
    billed = (
        pl.concat([windows, dropped])
        .cast(MINUTES)
        .group_by(KEY)
        .agg(pl.max("unit_price"), pl.sum("quantity").cast(SUM), lowest_unit_price=pl.min("unit_price"))
    )
    both = (
        sums.cast(MINUTES)
        .join(billed, on=KEY, how="full", suffix="_billed", nulls_equal=True, coalesce=True)
        .with_columns(pl.col("quantity", "quantity_billed").fill_null(0))
    )
    # A window that came back to 0 keeps its price.
    prices = pl.col("unit_price_billed", "lowest_unit_price")
    is_priced_otherwise = pl.any_horizontal((pl.col("unit_price") != prices).fill_null(False))
    wrong = both.filter((pl.col("quantity") != pl.col("quantity_billed")) | is_priced_otherwise).sort(KEY)
    return [
        f"{row['meter']} of {row['account']}, {row['model']}, in the minute {row['window_start']:%Y-%m-%dT%H:%MZ} at "
        f"price version {row['price_version']} ({row['currency']}): usage is {row['quantity']} x {row['unit_price']}, "
        f"windows and unbilled stragglers {row['quantity_billed']} x {row['unit_price_billed']}"
        for row in wrong.iter_rows(named=True)
    ]
