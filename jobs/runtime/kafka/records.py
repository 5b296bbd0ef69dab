"""Kafka's records as columns: Spark, the driver and the raw scan all give these."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from jobs.runtime.kafka import headers
from jobs.runtime.kafka.marks import MARKS

RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        headers.FIELD,
        *((column, pa.binary()) for column in MARKS),
    ]
)
"""As Spark's Kafka source names them, their headers (`headers`), and what those say of their past (`marks`)."""
PLACE: dict[str, pl.DataType | type[pl.DataType]] = {"topic": pl.String, "partition": pl.Int32, "offset": pl.Int64}
"""What identifies a record: an offset alone is one of each partition, and a partition one of each topic."""
