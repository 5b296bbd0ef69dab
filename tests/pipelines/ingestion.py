"""Frames of Kafka records, and what `classify` and then `judged_by_reception` make of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobs.ingestion.classify import LOG_APPEND_TIME, classify
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.event_times import judged_by_reception
from jobs.runtime.kafka.looked_records import RECORDS
from tests.corpus import RECEIVED_AT

Record = tuple[bytes | None, datetime]


def frame_of(spark: SparkSession, records: Sequence[bytes | Record | None]) -> DataFrame:
    """Payloads as Kafka records, their offsets in order; a payload may come with when it was received."""
    whole = [record if isinstance(record, tuple) else (record, RECEIVED_AT) for record in records]
    place = {"key": b"k", "topic": "events", "partition": 0, "timestampType": LOG_APPEND_TIME}
    rows = [
        {**place, "value": value, "offset": offset, "timestamp": received_at}
        for offset, (value, received_at) in enumerate(whole)
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=RECORDS))


def judged(
    spark: SparkSession, records: Sequence[bytes | Record | None], config: IngestionConfig | None = None
) -> pl.DataFrame:
    """The journal's columns of `frame_of`'s records, without the driver's; each was received when its stamp says."""
    config = config or IngestionConfig()
    found = pl.DataFrame(classify(frame_of(spark, records), config).toArrow())
    return judged_by_reception(found.with_columns(received_at="stamped_at"), config)


def classified(
    spark: SparkSession, records: Sequence[bytes | Record | None], config: IngestionConfig | None = None
) -> list[dict[str, Any]]:
    """The rows of `judged`, in the order of the records."""
    rows = judged(spark, records, config).to_dicts()
    by_offset: dict[int, dict[str, Any]] = {row["offset"]: row for row in rows}
    assert sorted(by_offset) == list(range(len(records)))
    return [by_offset[offset] for offset in range(len(records))]
