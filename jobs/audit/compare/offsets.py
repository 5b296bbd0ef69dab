"""Offsets without a row in the journal: those that Kafka still has are looked up once more.

Ingestion proved each of them when it passed it. This checks all of them again, with the present broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

import polars as pl
import pyarrow.compute as pc
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from jobs.audit.compare.partition_balance import Partition, PartitionRange
from jobs.journal.elements import is_record_arrow
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.protocol.absent_offsets import AbsentOffsets, Gap
from jobs.runtime.kafka.topic import EARLIEST

_KAFKA_TIMEOUT_SECONDS = 15
_PLACE = ("topic", "partition")


@dataclass(frozen=True)
class Proof:
    """Offsets without a row: how many hold no record, how many Kafka no longer has, and the findings."""

    proved: int
    gone: int
    broken: list[str]


def proved_absent(
    journal: DeltaTable,
    ranges: Mapping[Partition, PartitionRange],
    since: date | None,
    access: KafkaAccess,
    admin: AdminClient,
) -> Proof:
    """Look at all offsets without a row of the partitions that have some, from the first row of the day `since` on.

    `since` None: from the first one read. Raises KafkaException and NotYet.
    """
    concerned = {place: covered for place, covered in ranges.items() if covered.absent}
    if not concerned:
        return Proof(0, 0, [])
    gaps = gaps_of(journal, concerned, since)
    oldest = _oldest(admin, gaps)
    held = {
        place: [Gap(gap.partition, max(gap.first, oldest[place]), gap.end) for gap in mine if gap.end > oldest[place]]
        for place, mine in gaps.items()
    }
    broken = []
    for topic in sorted({topic for topic, _ in held}):
        absent = AbsentOffsets(access, admin, topic)
        mine = [gap for (name, _), of_partition in held.items() if name == topic for gap in of_partition]
        if (lost := absent.first_lost(mine)) is not None:
            broken.append(f"offset {lost[1]} of partition {lost[0]} of {topic} holds a record that no row has")
    looked = sum(gap.end - gap.first for mine in held.values() for gap in mine)
    return Proof(looked, sum(gap.end - gap.first for mine in gaps.values() for gap in mine) - looked, broken)


def gaps_of(
    journal: DeltaTable, concerned: Mapping[Partition, PartitionRange], since: date | None
) -> dict[Partition, list[Gap]]:
    """The offsets without a row, by partition, in order. Of all rows only their ranges are in memory at once."""
    columns = [*_PLACE, "offset", "log_date"]
    topics = pc.field("topic").isin(sorted({topic for topic, _ in concerned}))
    dataset = journal.to_pyarrow_dataset()
    batches = dataset.to_batches(columns=columns, filter=topics & is_record_arrow(dataset.schema))
    found = [_ranges(pl.DataFrame(batch), since) for batch in batches]
    ranges = pl.concat(found) if found else _ranges(pl.DataFrame(schema=_SCHEMA), since)
    by_place = ranges.sort(*_PLACE, "first").partition_by(_PLACE, as_dict=True)
    return {
        place: _between(by_place[place], None if since else covered.first_offset)
        for place, covered in sorted(concerned.items())
        if place in by_place
    }


_SCHEMA = {"topic": pl.String, "partition": pl.Int32, "offset": pl.Int64, "log_date": pl.Date}


def _ranges(rows: pl.DataFrame, since: date | None) -> pl.DataFrame:
    """Rows → the ranges [first, end) of offsets that follow each other, and whether any of them is recent."""
    ordered = rows.sort(*_PLACE, "offset")
    follows = (pl.col("offset") == pl.col("offset").shift(1) + 1) & pl.all_horizontal(
        pl.col(name) == pl.col(name).shift(1) for name in _PLACE
    )
    is_recent = pl.lit(value=True) if since is None else pl.col("log_date") >= since
    return (
        ordered.with_columns(range=(~follows.fill_null(value=False)).cum_sum(), is_recent=is_recent)
        .group_by(*_PLACE, "range")
        .agg(first=pl.min("offset"), end=pl.max("offset") + 1, recent=pl.col("offset").filter("is_recent").min())
        .drop("range")
    )


def _between(ranges: pl.DataFrame, start: int | None) -> list[Gap]:
    """The gaps between ranges of one partition (in order): from `start` on, or from the first recent row."""
    begin = ranges["recent"].min() if start is None else start
    if begin is None:
        return []
    before = pl.col("end").shift(1).fill_null(begin).clip(lower_bound=pl.lit(begin))
    gaps = ranges.select("partition", before=before, first="first").filter(pl.col("before") < pl.col("first"))
    return [Gap(*gap) for gap in gaps.iter_rows()]


def _oldest(admin: AdminClient, places: Iterable[Partition]) -> dict[Partition, int]:
    """The first offset that Kafka still holds of each."""
    requests = {TopicPartition(topic, partition): EARLIEST for topic, partition in places}
    if not requests:
        return {}
    answers = admin.list_offsets(requests, request_timeout=_KAFKA_TIMEOUT_SECONDS)
    return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
