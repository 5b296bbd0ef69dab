"""Whether the audit's rows have the price of the version that they name. Which version applies is not checked here."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.audit.compare.differences import DIFFERENCES, Kind
from jobs.audit.recompute.expected import OUTCOME, Pinned
from jobs.joins.catalog_versions import PRICE_KEY, by_reported_model
from jobs.streams import AMOUNT, QUANTITY, UNIT_PRICE
from jobs.usage_entries import ENTRY, METERS
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE
from metering.vocabulary import UsageCause


def wrong_prices(now: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Effective usage (`differences.net`) → DIFFERENCES of rows with another cause than `stream`.

    An entry with a price must have the unit price of its version, of its plan, model, meter and currency, and an amount
    of quantity x unit price; neither, where its version has tiers or packages. Entries without a price are not
    compared.
    """
    put = now.filter(pl.col("cause") != UsageCause.STREAM.value)
    if METERS not in put.columns or put.is_empty():
        return pl.DataFrame(schema=DIFFERENCES)
    names = (*OUTCOME, "usage_lsn", "plan", "model", "currency")
    entries = put.select(*names, METERS).filter(pl.col(METERS).list.len() > 0).explode(METERS).unnest(METERS)
    priced = entries.filter(pl.any_horizontal(pl.col("price_version", "unit_price", "amount").is_not_null()))
    is_elsewhere = pl.col("price_version").is_in([BILLED_AS_PART, BILLED_IN_WHOLE]).fill_null(value=False)
    # There may be a million versions, and these rows are few.
    every = pinned.prices_known.every.filter(pl.col("version_lsn").is_in(priced["price_version"].unique().implode()))
    has_no_unit = pl.col("unit_price").is_null()
    versions = every.select(*PRICE_KEY, price_version="version_lsn", must="unit_price", is_tiered=has_no_unit)
    known = pinned.prices_known.priced_models
    versions = by_reported_model(versions.unique([*PRICE_KEY, "price_version"]), priced["model"], known)
    both = priced.join(versions, on=[*PRICE_KEY, "price_version"], how="left")
    both = both.with_columns(must=pl.when(is_elsewhere).then(pl.lit(0, ENTRY["unit_price"])).otherwise("must"))
    with_amounts = both.with_columns(must_amount=_products(both))
    is_tiered = pl.col("is_tiered").fill_null(value=False)
    is_other = pl.any_horizontal(
        pl.col(found).ne_missing(pl.col(must)) | (pl.col(must).is_null() & ~is_tiered)
        for found, must in (("unit_price", "must"), ("amount", "must_amount"))
    )
    found, must = (
        pl.concat_str("meter", "quantity", "price_version", *pair, separator=" ", ignore_nulls=True)
        for pair in (("unit_price", "amount"), ("must", "must_amount"))
    )
    return (
        with_amounts.filter(is_other)
        .select(
            *OUTCOME, "usage_lsn", kind=pl.lit(Kind.OTHERWISE.value), column=pl.lit(METERS), found=found, expected=must
        )
        .select(pl.col(name) if name != "of" else pl.lit(None, kind).alias(name) for name, kind in DIFFERENCES.items())
    )


def _products(entries: pl.DataFrame) -> pl.Series:
    """Quantity x the version's unit price, with each digit: Polars would keep fewer."""
    quantity, unit_price = (
        entries[name].to_arrow().cast(kind) for name, kind in (("quantity", QUANTITY), ("must", UNIT_PRICE))
    )
    product: pa.Array = pc.multiply(quantity, unit_price)
    return pl.Series(product.cast(AMOUNT)).cast(ENTRY["amount"])
