"""Kafka's record batches as they lie in the log: https://kafka.apache.org/documentation/#recordbatch"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jobs.runtime.kafka.protocol.crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, leaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
producerId, producerEpoch, baseSequence, recordsCount."""
_BEGINNING = struct.Struct(">qiib")
"""Of a batch; or of a record of long ago: its offset, length, crc and magic. (Of a pack of such its last offset.)"""
_BEFORE_LENGTH_BYTES = 12
_UNCHECKED_BYTES = 21
"""Up to and with the checksum, which is of all that follows."""
MAGIC = 2


@dataclass(frozen=True)
class RecordBatch:
    """One batch and its packed records."""

    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    count: int
    packed: memoryview
    magic: int = MAGIC
    crc: int = 0
    checked: memoryview | None = None
    """What `crc` is of; None in the formats of long ago."""

    @property
    def is_intact(self) -> bool:
        """Whether it is as its producer and its broker wrote it."""
        return self.checked is not None and crc32c(self.checked) == self.crc

    @property
    def is_append_time(self) -> bool:
        """Whether a broker stamped it; then all its records share the stamp."""
        return bool(self.attributes & 0x08)

    @property
    def is_transactional(self) -> bool:
        """Whether it counts only when its producer's transaction was committed."""
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        """Whether it is a transaction marker, which holds no record for consumers."""
        return bool(self.attributes & 0x20)


def batches_of(data: bytes) -> Iterator[RecordBatch]:
    """The whole batches in a broker's answer; the last may be cut off. Raises ValueError for an invalid one.

    A record, or a pack of records, in an old message format is a batch of which only the last offset is known.
    """
    view, at, following = memoryview(data), 0, 0
    while at + _BEGINNING.size <= len(view):
        offset, length, _, magic = _BEGINNING.unpack_from(view, at)
        end = at + _BEFORE_LENGTH_BYTES + length
        if end > len(view):
            return
        if magic < MAGIC and end - at >= _BEGINNING.size:
            yield RecordBatch(following, offset, 0, 0, 0, -1, -1, view[at:end], magic)
            following = offset + 1
        elif magic == MAGIC and end - at >= _HEADER.size:
            batch = _headed(view[at:end])
            yield batch
            following = batch.last_offset + 1
        else:
            raise ValueError(
                f"records from offset {offset} on have the message format {magic}, which Weir does not know"
            )
        at = end


def _headed(view: memoryview) -> RecordBatch:
    base, _, _, magic, crc, attributes, last, first_ms, max_ms, producer, _, _, count = _HEADER.unpack_from(view)
    packed, checked = view[_HEADER.size :], view[_UNCHECKED_BYTES:]
    return RecordBatch(base, base + last, attributes, first_ms, max_ms, producer, count, packed, magic, crc, checked)


def committed(batches: Iterable[RecordBatch], aborted: Iterable[tuple[int, int]]) -> Iterator[RecordBatch]:
    """The batches that hold records for a reader of committed records.

    `aborted`: producer and first offset of each transaction that was given up, as the broker names them.
    """
    waiting, active = sorted(aborted, key=lambda transaction: transaction[1]), set[int]()
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last_offset:
            active.add(waiting.pop(0)[0])
        if batch.is_control:
            active.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in active):
            yield batch
