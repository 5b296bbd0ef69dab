"""I2: the offsets that the journal covers of each topic, by its transactions, compared with its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from jobs.audit.check import Check, first_sentence
from jobs.audit.compare.offsets import proved_absent
from jobs.audit.compare.partition_balance import Partition, PartitionRange, RowKey, residual
from jobs.audit.tables.retained import retained_rows
from jobs.journal.elements import is_event_arrow, is_record_arrow
from jobs.runtime.delta.table import open_table, removed_rows
from jobs.runtime.errors import NotYet
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.topic import Topic
from jobs.streams import EVENTS_TOPIC, CatalogTopic, Table

_KAFKA_TIMEOUT_SECONDS = 15


def conservation(tables: str, access: KafkaAccess, admin: AdminClient, since: datetime | None) -> Check:
    """I2: received = absent + accepted + rejected + duplicate + conflict + removed. Raises KafkaException and NotYet.

    Of a topic that is not there nothing is examined: only Kafka knows which one it was. The offsets without a row are
    looked at in Kafka, as far as it still holds them; `since`: only those of that day and later.
    """
    journal = open_table(tables, Table.JOURNAL)
    rows = Counter[RowKey]() if journal is None else count_rows(journal)
    topics = topics_read(admin, rows)
    ranges = {} if journal is None else consumed_ranges(journal, topics)
    of_partition = Counter[Partition]()
    for (topic, partition, *_), count in rows.items():
        of_partition[topic, partition] += count
    counted = conserved(ranges, of_partition)
    if journal is None or not counted.holds:
        return counted
    days = [retained_rows(journal).since, None if since is None else since.date()]
    try:
        proof = proved_absent(journal, ranges, max((day for day in days if day), default=None), access, admin)
    except NotYet as error:
        return replace(counted, says=f"{counted.says}; offsets without a row were not looked at: {error}")
    looked = f"; {proof.proved} offsets without a row hold no record" + f", {proof.gone} are gone" * bool(proof.gone)
    sound = counted.says + looked * bool(proof.proved or proof.gone)
    return first_sentence("I2", counted.examined, proof.broken, sound)


def conserved(ranges: Mapping[Partition, PartitionRange], rows: Mapping[Partition, int]) -> Check:
    """I2, from what the journal covers of each partition, and how many rows it has of it."""
    missing = {place: residual(covered, rows.get(place, 0)) for place, covered in sorted(ranges.items())}
    wrong = [f"partition {place[1]} of {place[0]} lacks {count} rows" for place, count in missing.items() if count]
    sound = "received = absent + accepted + rejected + duplicate + conflict + removed, in each partition"
    if lost := sum(covered.lost for covered in ranges.values()):
        sound = f"{sound}, but for {lost} records that were deleted unread: an operator has accepted that"
    if unknown := sorted({topic for topic, partition in rows if (topic, partition) not in ranges}):
        sound = f"topic {unknown[0]} no longer exists, so its rows in the journal were not examined"
    return first_sentence("I2", sum(count for place, count in rows.items() if place in ranges), wrong, sound)


def consumed_ranges(journal: DeltaTable, topics: Iterable[Topic]) -> dict[Partition, PartitionRange]:
    """What the journal's transactions say of each partition of `topics`; those never read from are left out."""
    ranges = {}
    for topic in topics:
        for partition in topic.partitions:
            first = journal.transaction_version(topic.first(partition))
            following = journal.transaction_version(topic.position(partition))
            absent = journal.transaction_version(topic.absent(partition))
            if first is not None and following is not None:
                removed = journal.transaction_version(removed_rows(topic.name, partition))
                lost = journal.transaction_version(topic.lost(partition))
                ranges[topic.name, partition] = PartitionRange(first, following, absent or 0, removed or 0, lost or 0)
    return ranges


def count_rows(journal: DeltaTable) -> Counter[RowKey]:
    """How many records the journal has, as `count_records_and_events` counts them."""
    return count_records_and_events(journal)[0]


def count_records_and_events(journal: DeltaTable) -> tuple[Counter[RowKey], Counter[RowKey]]:
    """How many records and how many events the journal has per topic, partition, disposition and reason.

    A record counts once, by its first row, and so does each of its events. One batch is in memory at a time.
    """
    keys = ["topic", "partition", "disposition", "reason"]
    records, events = Counter[RowKey](), Counter[RowKey]()
    dataset = journal.to_pyarrow_dataset()
    schema = dataset.schema
    columns = {**{name: pc.field(name) for name in keys}, "is_record": is_record_arrow(schema)}
    for batch in dataset.scanner(columns=columns, filter=is_event_arrow(schema)).to_batches():
        grouped = pa.Table.from_batches([batch]).group_by([*keys, "is_record"]).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            key = (row["topic"], row["partition"], row["disposition"], row["reason"])
            events[key] += row["count_all"]
            if row["is_record"]:
                records[key] += row["count_all"]
    return records, events


def topics_read(admin: AdminClient, rows: Iterable[RowKey]) -> list[Topic]:
    """Weir's topics and those of `rows`, as far as they exist, with their ids. Raises KafkaException."""
    names = {EVENTS_TOPIC, *CatalogTopic, *(topic for topic, *_ in rows)}
    existing = admin.list_topics(timeout=_KAFKA_TIMEOUT_SECONDS).topics
    wanted = sorted(names & existing.keys())
    if not wanted:
        return []
    answers = admin.describe_topics(TopicCollection(wanted), request_timeout=_KAFKA_TIMEOUT_SECONDS)
    return [Topic.of(name, answer.result()) for name, answer in answers.items()]
