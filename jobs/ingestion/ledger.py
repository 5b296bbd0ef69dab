"""The offsets of a topic that the journal has: positions, holes, and the latest reception per partition.

The ledger is kept in the journal's own transactions, so it is committed with the rows or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import polars as pl
from confluent_kafka.admin import AdminClient

from jobs.ingestion.accepted_losses import Loss, losses_at
from jobs.ingestion.gaps import gaps_in
from jobs.ingestion.received import Reception, Restamp
from jobs.runtime.delta.table import FRONTIER, DeltaWriter, instant_of, microseconds_of
from jobs.runtime.errors import START_OVER, NotYet, Refused
from jobs.runtime.kafka.protocol.absent_offsets import Gap
from jobs.runtime.kafka.topic import EARLIEST, Topic, offsets, refuse_lost_records
from metering.vocabulary import Cause


class OffsetLedger:
    """The journal's account of one topic. Raises Refused for another topic than the one read before."""

    def __init__(
        self,
        writer: DeltaWriter,
        admin: AdminClient,
        topic: Topic,
        *,
        decides_frontier: bool = False,
        accepted: Sequence[Loss] = (),
    ) -> None:
        self.topic = topic
        self.absent_in_last_take = 0
        self.lost_in_last_take: Sequence[Loss] = ()
        """What it passed because an operator has accepted that it is lost."""
        self._writer = writer
        self._identity = topic_identity(topic.name)
        self._fingerprint = int.from_bytes(hashlib.sha256(topic.topic_id.encode()).digest()[:7])
        known = writer.recall(self._identity)
        if known is not None and known != self._fingerprint:
            raise Refused(_made_again(topic.name))
        self._positions: dict[int, int] = {}
        latest: dict[int, datetime] = {}
        frontier = instant_of(writer.recall(FRONTIER)) if decides_frontier else None
        for partition in topic.partitions:
            # One behind F was not read while F moved: its topic was removed, and is read again. What it has now was not
            # received before F, as in a partition that was never read.
            if (received_at := self._recall(partition)) is not None and received_at >= (frontier or received_at):
                latest[partition] = received_at
        self._reception = Reception(topic.partitions, latest, frontier)
        # A topic that was read before had no other partitions then: each of these must still have its first record.
        never_read = dict.fromkeys(topic.partitions, 0) if known is not None else {}
        reached = {**never_read, **self._positions}
        self._earliest = offsets(admin, topic, EARLIEST)
        self._lost = losses_at(accepted, reached, self._earliest)
        passed = {partition: loss.end for partition, loss in self._lost.items()}
        refuse_lost_records(admin, topic, reached | passed)
        self._positions |= passed

    def follow(self, admin: AdminClient, topic: Topic) -> dict[int, int]:
        """Take over the topic's partitions as they are now; returns where added ones begin.

        Call it after the end offsets of a batch are fixed: a record in a partition that is added later was not received
        before those of the batch. Raises Refused for another topic, or when records of a new partition are already
        lost.
        """
        if topic.topic_id != self.topic.topic_id:
            raise Refused(_made_again(topic.name))
        added = tuple(sorted(set(topic.partitions) - set(self.topic.partitions)))
        if not added:
            return {}
        begin = dict.fromkeys(added, 0)
        refuse_lost_records(admin, replace(topic, partitions=added), begin)
        self.topic = topic
        self._earliest |= begin
        for partition in added:
            self._recall(partition)
            self._reception.add(partition)
        return begin

    def _recall(self, partition: int) -> datetime | None:
        position = self._writer.recall(self.topic.position(partition))
        for count in (self.topic.first(partition), self.topic.absent(partition), self.topic.lost(partition)):
            self._writer.recall(count)
        if position is not None:
            self._positions[partition] = position
        return instant_of(self._writer.recall(self.topic.received(partition)))

    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition that has been read."""
        return self._positions

    def next_offsets(self) -> dict[int, int]:
        """The next offset per partition; the first that the topic holds where none was read."""
        return {**self._earliest, **self._positions}

    def records(self) -> int:
        """How many records the topic's committed positions cover: every offset since the first record but lost ones."""
        known = self._writer.known
        return sum(
            (known.get(self.topic.position(partition)) or 0)
            - (known.get(self.topic.first(partition)) or 0)
            - (known.get(self.topic.absent(partition)) or 0)
            - (known.get(self.topic.lost(partition)) or 0)
            for partition in self._positions
        )

    def frontier(self) -> datetime | None:
        """F of what was taken."""
        return self._reception.frontier

    def forget_receptions(self, after: datetime) -> None:
        """Let no partition have come further than this, or than F."""
        self._reception.forget_receptions(after)

    def received(
        self, records: pl.DataFrame, restamps: Sequence[Restamp] = (), floor: datetime | None = None
    ) -> pl.DataFrame:
        """New records (partition, offset, stamped_at, is_broker_stamp, …) with `received_at`, in their order.

        `floor`: F, where other topics decide it, too.
        """
        return self._reception.received(records, restamps, floor)

    def gaps(self, rows: pl.DataFrame) -> list[Gap]:
        """The offsets before and between new rows (partition, offset, in this order) that no row has."""
        return gaps_in(rows, self.next_offsets())

    def take(
        self, rows: pl.DataFrame, ends: Mapping[int, int] | None = None, proved: Mapping[int, int] | None = None
    ) -> dict[str, int]:
        """Account for new rows (partition, offset, received_at), and return the transactions that record it.

        `ends` are positions beyond the last row, where offsets at the end hold no record. Absent are `proved` offsets,
        so many per partition, and no others: what is passed without is missing in the conservation equation. Without
        `proved` all that no row has are absent: a plain consumer has passed them, which drops no record. Raises Refused
        for a row below the position, or two of one offset; NotYet for one of a partition that is not known yet.
        """
        if unlisted := set(rows["partition"].unique()) - set(self.topic.partitions):
            raise NotYet(Cause.KAFKA, f"{self.topic.name}: a broker does not know of the partitions {unlisted} yet")
        transactions = {self._identity: self._fingerprint}
        self.absent_in_last_take = 0
        # A partition without a record is known from now on, too: what it loses later was lost unread.
        reach = {p: (self._earliest[p], 0) for p in self.topic.partitions if p not in self._positions}
        reach |= {
            p: (end, 0) for p, end in (ends or {}).items() if end > self._positions.get(p, self._earliest.get(p, 0))
        }
        reach |= {p: (self._positions[p], 0) for p in self._lost if p not in reach}
        per_partition = rows.group_by("partition").agg(
            pl.col("offset").min().alias("first"),
            (pl.col("offset").max() + 1).alias("next"),
            pl.col("offset").n_unique().alias("offsets"),
            pl.len().alias("rows"),
        )
        for partition, first, next_offset, distinct, count in per_partition.iter_rows():
            if distinct != count or first < self._positions.get(partition, 0):
                raise Refused(
                    f"{self.topic.name}[{partition}] is at {self._positions.get(partition)}, but the batch holds "
                    f"{count} records of {distinct} offsets from {first} on, so records would count twice; start "
                    "ingestion again"
                )
            reach[partition] = (max(next_offset, reach.get(partition, (0, 0))[0]), count)
        for partition, (next_offset, count) in reach.items():
            passed = next_offset - self.next_offsets()[partition] - count
            absent = passed if proved is None else proved.get(partition, 0)
            transactions |= self._moved(partition, next_offset, absent)
        for partition, loss in self._lost.items():
            lost, first = self.topic.lost(partition), self.topic.first(partition)
            transactions[lost] = (self._writer.known.get(lost) or 0) + loss.end - loss.first
            if self._writer.known.get(first) is None:
                transactions[first] = loss.first
        self.lost_in_last_take, self._lost = tuple(self._lost.values()), {}
        latest = self._reception.take(rows)
        return transactions | {self.topic.received(partition): microseconds_of(at) for partition, at in latest.items()}

    def _moved(self, partition: int, next_offset: int, absent: int) -> dict[str, int]:
        moved = {}
        if partition not in self._positions:
            moved[self.topic.first(partition)] = self._earliest[partition]
        self.absent_in_last_take += absent
        moved[self.topic.absent(partition)] = (self._writer.known.get(self.topic.absent(partition)) or 0) + absent
        moved[self.topic.position(partition)] = self._positions[partition] = next_offset
        return moved


def topic_identity(topic: str) -> str:
    """The transaction that says which topic of this name the journal has read."""
    return f"topic:{topic}"


def _made_again(topic: str) -> str:
    return (
        f"topic {topic} was deleted and made again since the journal read it, so offsets mean other records now; "
        f"restore the topic, {START_OVER}"
    )
