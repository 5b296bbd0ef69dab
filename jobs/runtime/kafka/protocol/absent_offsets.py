"""Offsets without a row: proved to hold no record, by reading the log itself once more.

Transactions leave markers and aborted records behind, which no consumer gets. A record that a batch has lost leaves the
same hole, so a hole is accepted only when a second read finds it too. Only the headers of batches are read: nothing is
unpacked, so a record beside a hole that inflates does no harm.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from jobs.runtime.errors import NotYet, Refused
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.protocol.leaders import leaders
from jobs.runtime.kafka.protocol.log_records import records_of
from jobs.runtime.kafka.protocol.record_batches import RecordBatch, batches_of, committed
from jobs.runtime.kafka.protocol.wire import Broker
from metering.vocabulary import Cause
from monitoring import metrics

FETCH_BYTES = 1 << 20


@dataclass(frozen=True, order=True)
class Gap:
    """The offsets [first, end) of a partition, which a record follows."""

    partition: int
    first: int
    end: int


class AbsentOffsets:
    """Reads gaps of one topic again, only what is committed, without a consumer."""

    def __init__(self, access: KafkaAccess, admin: AdminClient, topic: str) -> None:
        self._access = access
        self._admin = admin
        self._topic = topic

    def prove(self, gaps: Sequence[Gap]) -> dict[int, int]:
        """How many offsets per partition were proved to hold no record: all those of `gaps`.

        Raises Refused when one does, so that it was lost on its way; NotYet or KafkaException when the gaps cannot be
        read now.
        """
        proved: dict[int, int] = {}
        try:
            if (lost := self.first_lost(gaps)) is not None:
                raise Refused(
                    f"{self._topic}[{lost[0]}]: offset {lost[1]} holds a record that the batch does not have: it was "
                    "lost on its way to ingestion, and continuing would never bill it; start ingestion again: it reads "
                    "the offset again. If this happens again, report it to Weir's developers with this offset"
                )
        except (Refused, NotYet, KafkaException):
            metrics.UNPROVED.set(sum(gap.end - gap.first for gap in gaps))
            raise
        for gap in gaps:
            proved[gap.partition] = proved.get(gap.partition, 0) + gap.end - gap.first
        metrics.UNPROVED.set(0)
        return proved

    def first_lost(self, gaps: Sequence[Gap]) -> tuple[int, int] | None:
        """A partition and the first of its offsets in `gaps` that holds a record; None: none does.

        Raises NotYet or KafkaException when they cannot be read now.
        """
        return self._read_again(sorted(gaps)) if gaps else None

    def _read_again(self, gaps: Sequence[Gap]) -> tuple[int, int] | None:
        addresses = leaders(self._admin, self._topic, sorted({gap.partition for gap in gaps}))
        brokers: dict[tuple[str, int], Broker] = {}
        with ExitStack() as connections:
            for partition, mine in groupby(gaps, key=lambda gap: gap.partition):
                address = addresses[partition]
                if address not in brokers:
                    brokers[address] = connections.enter_context(Broker(self._access, *address))
                if (lost := self._lost(brokers[address], partition, list(mine))) is not None:
                    return partition, lost
        return None

    def _lost(self, broker: Broker, partition: int, gaps: Sequence[Gap]) -> int | None:
        """Look at all batches that reach into gaps of one partition, up to the first record in one."""
        place, number, position = f"{self._topic}[{partition}]", 0, 0
        while number < len(gaps):
            position = max(position, gaps[number].first)
            batches, aborted = self._fetched(broker, partition, position)
            for batch in committed(batches, aborted):
                try:
                    lost = lost_in(batch, gaps)
                except ValueError as error:
                    raise NotYet(Cause.KAFKA, f"{place}: {gaps[number]} cannot be read again: {error}") from error
                if lost is not None:
                    return lost
            position = max(position, batches[-1].last_offset) + 1
            while number < len(gaps) and gaps[number].end <= position:
                number += 1
        return None

    def _fetched(
        self, broker: Broker, partition: int, position: int
    ) -> tuple[list[RecordBatch], list[tuple[int, int]]]:
        place = f"{self._topic}[{partition}]: the offsets from {position} on"
        try:
            fetched = broker.fetch(self._topic, partition, position, FETCH_BYTES)
            batches = list(batches_of(fetched.batches))
        except ValueError as error:
            raise NotYet(Cause.KAFKA, f"{place} cannot be read again: {error}") from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError.OFFSET_OUT_OF_RANGE:
                raise
            # The recreated sink checks what is left, and refuses when records are lost.
            raise NotYet(Cause.KAFKA, f"{place}, which were to be read again, are gone") from error
        if not batches:
            raise NotYet(Cause.KAFKA, f"{place} cannot be read again: the partition's leader does not have them yet")
        return batches, fetched.aborted


def lost_in(batch: RecordBatch, gaps: Sequence[Gap]) -> int | None:
    """The first offset in `gaps` (of the batch's partition, in order) at which a committed batch holds a record.

    Raises ValueError when that cannot be known.
    """
    end = batch.last_offset + 1
    first = bisect_right(gaps, batch.base_offset, key=lambda gap: gap.end)
    overlaps = gaps[first : bisect_right(gaps, batch.last_offset, key=lambda gap: gap.first)]
    if not overlaps or batch.count == 0:
        return None
    if batch.count == end - batch.base_offset:
        return max(batch.base_offset, overlaps[0].first)
    # A topic that was compacted once has batches with holes of their own.
    for record in records_of(batch, overlaps[0].partition, overlaps[0].first, largest_bytes=0):
        if record.is_unknown:
            raise ValueError(record.problem)
        if any(gap.first <= record.offset < gap.end for gap in overlaps):
            return record.offset
    return None
