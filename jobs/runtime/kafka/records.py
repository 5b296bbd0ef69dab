"""Kafka's records as columns: Spark, the driver and the raw scan all give these."""

from __future__ import annotations

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
