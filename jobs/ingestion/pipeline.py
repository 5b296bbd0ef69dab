"""Kafka `events` and `catalog.*` → Delta `journal`: every record exactly once, in one order, with its disposition.

The journal's commit holds the offsets that it has read, so a driver may die, repeat or freeze anywhere.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jobs.ingestion.classify import classify
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.gauges import totals
from jobs.ingestion.sink import JournalSink
from jobs.runtime.job import TopicJob
from jobs.streams import Table
from metering.words import Job


def build(records: DataFrame, config: IngestionConfig) -> DataFrame:
    """Kafka records, judged each by itself; the columns of `classify`. When they were received is the driver's."""
    return classify(records, config)


JOB = TopicJob(
    name=Job.INGESTION.value,
    writes=Table.JOURNAL,
    config=IngestionConfig,
    build=build,
    start=JournalSink,
    totals=totals,
)
