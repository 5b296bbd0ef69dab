"""Records of the journal from topics that ingestion reads no more: conservation is shown without them."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.journal.elements import is_record_arrow
from jobs.runtime.delta.table import removed_rows
from jobs.runtime.kafka.topic import Topic

TRANSACTION = "elsewhere"
"""Counts, in the journal, the records that it has of topics that are not read any more."""


def records_of_others(journal: DeltaTable, records: int, topics: Collection[Topic]) -> int:
    """How many of all `records` that the journal ever had are not of these topics.

    One scan of two columns. What `weir retain` has removed counts as if it were still there.
    """
    dataset = journal.to_pyarrow_dataset()
    is_theirs = ds.field("topic").isin([topic.name for topic in topics]) & is_record_arrow(dataset.schema)
    removed = [
        journal.transaction_version(removed_rows(topic.name, partition)) or 0
        for topic in topics
        for partition in topic.partitions
    ]
    present: int = dataset.count_rows(filter=is_theirs)
    return records - present - sum(removed)
