"""Kafka `events` and `catalog.*` → Delta `journal`: every record exactly once, in one order, with its disposition.

The journal's commit holds the offsets that it has read, so a driver may die, repeat or freeze anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.gauges import totals
from jobs.ingestion.sink import JournalSink
from jobs.runtime.job import TopicJob
from jobs.streams import Table
from metering.words import Job


def build(records: DataFrame, config: IngestionConfig) -> DataFrame:
    """Kafka records, judged each by itself in Spark's Python workers; the columns of `Judge.schema`.

    When they were received is the driver's.
    """
    judge = config.judge()

    def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from judge.judge(batch).to_batches()

    # Arrow's schema says which instants have a zone, which Spark asks for.
    schema = from_arrow_schema(judge.schema, prefer_timestamp_ntz=False)
    return records.select(*RECORD).mapInArrow(judged, schema)


RECORD = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""What is read of a Kafka record."""

JOB = TopicJob(
    name=Job.INGESTION.value,
    writes=Table.JOURNAL,
    config=IngestionConfig,
    build=build,
    start=JournalSink,
    totals=totals,
)
