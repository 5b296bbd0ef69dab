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
from jobs.ingestion.handover import FILES, Place, left_in
from jobs.ingestion.ledger import topic_identity
from jobs.ingestion.sink import JournalSink
from jobs.ingestion.topic_removals import refuse_missing_topics
from jobs.journal.elements import has_room
from jobs.runtime.delta.table import LSN, open_table
from jobs.runtime.effective_rules import read_history
from jobs.runtime.environment import Environment
from jobs.runtime.job import TopicJob
from jobs.runtime.worker_garbage import exempt_imports
from jobs.streams import Table
from metering.vocabulary import Job


def build(records: DataFrame, config: IngestionConfig, place: Place | None = None) -> DataFrame:
    """Kafka records, each validated alone in Spark's Python workers; the columns of `EventValidator.schema`.

    The driver adds the time of receipt. If there is a `place`, workers write their results there and return only
    the list of files (`FILES`).
    """
    validator, context = config.validator(), records.sparkSession.sparkContext

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            yield from validator.validated_blocks(batch)

    def validated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in tables(batches):
            yield from table.to_batches()
        exempt_imports()

    def left(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert place is not None, "only used with one"
        yield from left_in(place, tables(batches), validator.schema)
        exempt_imports()

    # No more tasks than cores: each has a fixed cost.
    read = records.select(*RECORD).coalesce(context.defaultParallelism)
    if place is not None:
        return read.mapInArrow(left, from_arrow_schema(FILES))
    # Arrow's schema says which instants have a zone, which Spark requires.
    return read.mapInArrow(validated, from_arrow_schema(validator.schema, prefer_timestamp_ntz=False))


def settle(config: IngestionConfig, where: Environment) -> IngestionConfig:
    """The configuration with the conventions that a new journal has, or that it was begun with.

    Raises Refused where it leaves out a topic that nobody has removed.
    """
    journal = open_table(where.tables, Table.JOURNAL)
    if journal is not None and not has_room(pa.schema(journal.schema().to_arrow())):
        config = config.model_copy(update={"batches": False})
    if journal is None or journal.transaction_version(LSN) in (None, 1):
        return config.settled((), is_new=True)
    history, _ = read_history(journal)
    refuse_missing_topics(
        history,
        config.topics,
        where.postgres_url,
        is_read=lambda topic: journal.transaction_version(topic_identity(topic)) is not None,
    )
    return config.settled(history, is_new=False)


RECORD = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "record_headers"),
    *("replay_mark", "reception_mark"),
)
"""What is read of a Kafka record."""

JOB = TopicJob(
    name=Job.INGESTION.value,
    writes=Table.JOURNAL,
    config=IngestionConfig,
    build=build,
    validator=lambda config: config.validator().validate,
    settle=settle,
    start=JournalSink,
    totals=totals,
)
