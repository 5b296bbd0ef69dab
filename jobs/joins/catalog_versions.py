"""Every version of accounts and prices → one row per key, from which `price` picks the version that holds.

A version holds from `effective_us` for outcomes decided after `lsn` and not after `superseded_lsn`: of a price, that of
the next version of the same key and `effective_from`. Versions are sorted so that the first that fits wins.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobs.streams import UNIT_PRICE
from metering.meters import Meter

BEGINNING_OF_TIME_US = -(2**63)

_HOLDS = [("lsn", pa.int64()), ("superseded_lsn", pa.int64()), ("effective_us", pa.int64())]
CONTRACT = pa.struct([*_HOLDS, ("plan", pa.string()), ("currency", pa.string())])
UNIT = pa.struct([*_HOLDS, ("unit_price", UNIT_PRICE)])

ACCOUNT_FRAME = pa.schema(
    [
        ("account", pa.string()),
        ("settled_lsn", pa.int64()),
        ("settled_us", pa.int64()),
        ("contract_current", CONTRACT),
        ("contract_versions", pa.list_(CONTRACT)),
    ]
)
"""One row per account. After `settled_lsn` and from `settled_us` on, `contract_current` holds: no need to search."""

PRICE_KEY = ("price_plan", "price_model", "price_currency")
PRICE_FRAME = pa.schema(
    [
        *[(name, pa.string()) for name in PRICE_KEY],
        ("prices_settled_lsn", pa.int64()),
        ("prices_settled_us", pa.int64()),
        *[(f"{meter}_current", UNIT) for meter in Meter],
        *[(f"{meter}_versions", pa.list_(UNIT)) for meter in Meter],
    ]
)
"""One row per (plan, model, currency); per meter as for accounts."""


def account_rows(accounts: pa.Table) -> pa.Table:
    """All versions (streams.ACCOUNTS) → ACCOUNT_FRAME.

    An account's very first version holds from the beginning of time. A deletion is a version without plan and currency.
    The newest that has begun holds, so none needs an end.
    """
    is_first = pl.int_range(pl.len()).over("account") == 0
    versions = (
        pl.DataFrame(accounts)
        .sort("account", "lsn")
        .with_columns(
            effective_us=pl.when(is_first).then(BEGINNING_OF_TIME_US).otherwise(pl.col("effective_from").dt.epoch("us"))
        )
        .with_columns(superseded_lsn=pl.lit(None, pl.Int64))
    )
    rows = (
        versions.group_by("account")
        .agg(settled_lsn=pl.max("lsn"))
        .join(_collected(versions, ["account"], "contract", CONTRACT, first=["lsn"]), on="account", how="left")
        .with_columns(settled_us=pl.col("contract_current").struct.field("effective_us"))
    )
    return _arrow(rows, ACCOUNT_FRAME)


def price_rows(prices: pa.Table) -> pa.Table:
    """All versions (streams.PRICES) → PRICE_FRAME. A deletion withdraws what its `effective_from` began."""
    key = list(PRICE_KEY)
    versions = (
        pl.DataFrame(prices)
        .rename({"plan": "price_plan", "model": "price_model", "currency": "price_currency"})
        .with_columns(effective_us=pl.col("effective_from").dt.epoch("us"))
        .sort(*key, "meter", "effective_us", "lsn")
        .with_columns(superseded_lsn=pl.col("lsn").shift(-1).over([*key, "meter", "effective_us"]))
    )
    rows = versions.group_by(key).agg(prices_settled_lsn=pl.max("lsn"))
    for meter in Meter:
        holding = versions.filter((pl.col("meter") == meter.value) & ~pl.col("deleted"))
        rows = rows.join(_collected(holding, key, meter.value, UNIT, first=["effective_us", "lsn"]), on=key, how="left")
    settled = [pl.col(f"{meter}_current").struct.field("effective_us") for meter in Meter]
    return _arrow(rows.with_columns(prices_settled_us=pl.max_horizontal(settled)), PRICE_FRAME)


def _collected(
    versions: pl.DataFrame, key: list[str], name: str, struct: pa.StructType, first: list[str]
) -> pl.DataFrame:
    """Per key `<name>_versions`, those that are highest by `first` in front, and `<name>_current`."""
    version = pl.struct(field.name for field in struct)
    return (
        versions.sort(first, descending=True)
        .group_by(key, maintain_order=True)
        .agg(
            version.alias(f"{name}_versions"),
            version.filter(pl.col("superseded_lsn").is_null()).first().alias(f"{name}_current"),
        )
    )


def _arrow(rows: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    if rows.is_empty():
        # Spark takes no column without a chunk.
        return pa.table([pa.array([], field.type) for field in schema], schema=schema)
    return rows.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)


def catalog_frames(spark: SparkSession, accounts: pa.Table, prices: pa.Table) -> tuple[DataFrame, DataFrame]:
    """All versions (streams.ACCOUNTS, streams.PRICES) → the frames that `price` joins (ACCOUNT_FRAME, PRICE_FRAME)."""
    return spark.createDataFrame(account_rows(accounts)), spark.createDataFrame(price_rows(prices))
