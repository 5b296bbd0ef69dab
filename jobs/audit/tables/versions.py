"""One version of the tables that an audit reads, and conversions between Spark and Polars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Versions:
    """What is read: a version of the journal and one of usage, which was made of it; from the log date `since` on."""

    spark: SparkSession
    tables: str
    journal: DeltaTable
    usage: DeltaTable
    since: date | None = None


def arrow(schema: pl.Schema) -> pa.Schema:
    """With the texts and bytes that Spark wants."""
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    fields = pl.DataFrame(schema=schema).to_arrow().schema
    return pa.schema([field.with_type(small.get(field.type, field.type)) for field in fields])


def spark_schema(schema: pl.Schema) -> str:
    """As Spark writes it."""
    names = {pl.String: "string", pl.Int64: "bigint", pl.Datetime: "timestamp", pl.Binary: "binary"}
    return ", ".join(
        f"`{name}` "
        + (f"decimal({kind.precision},{kind.scale})" if isinstance(kind, pl.Decimal) else names[type(kind)])
        for name, kind in schema.items()
    )
