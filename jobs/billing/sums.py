"""Usage rows → sums per minute, meter, price version and arrival. Amounts are not added up: the database multiplies."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.billing.config import BillingConfig
from jobs.billing.staged import STAGED
from jobs.metered import METERED_COLUMNS, metered
from jobs.streams import AMOUNT, QUANTITY, UNIT_PRICE
from metering.windows import MINUTE
from metering.words import Decision

COLUMNS = (
    *("lsn", "account", "request_id", "model", "outcome", "event_time", "received_at", "currency", "sign", "cause"),
    *("day", "dimensions", *METERED_COLUMNS),
)
"""What is read of usage."""
KEY = (
    *("window_start", "account", "model", "currency", "cause", "sign", "late", "straggler_lsn", "request_id"),
    *("meter", "price_version", "day", "dimensions"),
)


def sums(usage: pa.Table, config: BillingConfig, closed_before: datetime | None = None) -> pa.Table:
    """Usage rows (COLUMNS) → STAGED, for each window, meter, price version, sign and arrival that something reached.

    Windows that ended by `closed_before` had closed under another grace: a longer one opens none of them again.
    """
    entries = metered(_judged(pl.DataFrame(usage).lazy(), config, closed_before)).collect()
    quantity, is_wrong = pl.col("quantity"), (~_is_sound(entries)).alias("is_wrong")
    policy = {meter: decision.value for meter, decision in config.policies.items()}
    decided = pl.col("meter").replace_strict(policy, default=Decision.CORRECT.value, return_dtype=pl.String)
    summed = (
        entries.with_columns(is_wrong)
        .group_by(KEY)
        .agg(
            pl.max("unit_price"),
            pl.min("unit_price").alias("lowest_unit_price"),
            pl.max("event_time"),
            pl.max("received_at"),
            # Of what is told of the day: a row of quantity 0 leaves nothing there, whatever stands beside it.
            pl.coalesce(pl.col("lsn").filter(quantity != 0).min(), pl.col("lsn").min()).alias("first_lsn"),
            quantity.sum(),
            metered_rows=(quantity != 0).sum().cast(pl.Int64),
            unmetered_rows=quantity.is_null().sum().cast(pl.Int64),
            unsound_rows=pl.sum("is_wrong").cast(pl.Int64),
        )
        .filter(pl.sum_horizontal("metered_rows", "unmetered_rows", "unsound_rows") > 0)
        .with_columns(
            quantity=pl.when(pl.col("sign") < 0).then(-quantity).otherwise(quantity),
            decision=pl.when(pl.col("straggler_lsn").is_not_null()).then(decided),
        )
    )
    return summed.select(STAGED.names).to_arrow().cast(STAGED)


def _judged(usage: pl.LazyFrame, config: BillingConfig, closed_before: datetime | None) -> pl.LazyFrame:
    """Usage rows with their minute and their arrival: `late`, or a `straggler_lsn` of its own."""
    received_at, window_end = pl.col("received_at"), pl.col("window_start") + MINUTE
    is_straggler = received_at >= window_end + config.grace
    if closed_before is not None:
        is_straggler |= window_end <= closed_before
    # Only 0.1.0 left the day to others.
    day = pl.coalesce("day", pl.col("event_time").dt.date())
    return usage.with_columns(day, window_start=pl.col("event_time").dt.truncate("1m")).with_columns(
        late=(received_at >= window_end) & ~is_straggler,
        straggler_lsn=pl.when(is_straggler).then("lsn"),
        request_id=pl.when(is_straggler).then("request_id"),
    )


def _is_sound(entries: pl.DataFrame) -> pl.Series:
    """A priced row has the amount that its quantity and unit price make, to the last digit; any other has none."""
    quantity, unit_price, amount = (
        entries[name].to_arrow().cast(kind)
        for name, kind in (("quantity", QUANTITY), ("unit_price", UNIT_PRICE), ("amount", AMOUNT))
    )
    is_priced = pc.and_(pc.is_valid(quantity), pc.is_valid(entries["price_version"].to_arrow()))
    is_product = pc.fill_null(pc.equal(pc.multiply(quantity, unit_price), amount), False)
    return pl.Series(pc.if_else(is_priced, is_product, pc.is_null(amount)))
