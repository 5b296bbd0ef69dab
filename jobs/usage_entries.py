"""Rows of `usage` of any release → one row per meter; these columns are read only here."""

from __future__ import annotations

import polars as pl

from jobs.streams import AMOUNT, QUANTITY, UNIT_PRICE, earlier_columns
from metering.meters import Meter
from metering.vocabulary import Outcome

METERS = "meters"
EARLIER = tuple(name for meter in Meter for name in earlier_columns(meter))
METERED_COLUMNS = (METERS, *EARLIER)
"""The columns of quantities in `usage`: null in rows of the other form, and absent from tables with only one form."""
ENTRY = {
    "meter": pl.String(),
    "quantity": pl.Decimal(QUANTITY.precision, QUANTITY.scale),
    "price_version": pl.Int64(),
    "unit_price": pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale),
    "amount": pl.Decimal(AMOUNT.precision, AMOUNT.scale),
}
"""Of one meter of an outcome: streams.METERED. Quantity null: its completion should have reported it, and did not."""


def metered(usage: pl.LazyFrame) -> pl.LazyFrame:
    """Rows of `usage` (outcome, METERED_COLUMNS and any others) → the same columns and ENTRY.

    A row without a meter gives none. Quantities and amounts are not signed.
    """
    stored = usage.collect_schema().names()
    kept = [name for name in stored if name not in METERED_COLUMNS]
    parts = []
    if METERS in stored:
        listed = usage.select(*kept, METERS).filter(pl.col(METERS).list.len() > 0)
        parts.append(listed.explode(METERS).unnest(METERS))
        usage = usage.filter(pl.col(METERS).is_null())
    parts += [_earlier(usage, kept, meter) for meter in Meter if meter.value in stored]
    return pl.concat([part.select(*kept, *(pl.col(name).cast(kind) for name, kind in ENTRY.items())) for part in parts])


def _earlier(usage: pl.LazyFrame, kept: list[str], meter: Meter) -> pl.LazyFrame:
    """The columns of an earlier release for one meter: null of a match was not reported, 0 counts as missing."""
    columns = earlier_columns(meter)
    is_reported = pl.col(meter.value).is_not_null() | (pl.col("outcome") == Outcome.MATCHED.value)
    names = zip(("quantity", "price_version", "unit_price", "amount"), columns, strict=True)
    return usage.filter(is_reported).select(
        *kept, pl.lit(meter.value).alias("meter"), *[pl.col(column).alias(name) for name, column in names]
    )
