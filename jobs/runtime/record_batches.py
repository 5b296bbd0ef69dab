"""Kafka's record batches as they lie in the log, read in constant memory: https://kafka.apache.org/documentation/#recordbatch

Every client library unpacks a batch whole. A producer may pack 1 GiB into 100 KiB, and the broker's limit is of the
packed size; here a record that is too large is passed over without being kept.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, leaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
producerId, producerEpoch, baseSequence, recordsCount."""
_BEGINNING = struct.Struct(">qiib")
"""Of a batch; or of a record of long ago: its offset, length, crc and magic. (Of a pack of such its last offset.)"""
_BEFORE_LENGTH_BYTES = 12
MAGIC = 2
_XERIAL = b"\x82SNAPPY\x00"
"""Java's Snappy is a stream of blocks that begins so, 16 bytes in all; other producers send one bare block."""
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
CHUNK_BYTES = 1 << 16
MOST_KEY_BYTES = 1 << 15
"""A longer key of a record that is too large is not kept either."""
MOST_SNAPPY_BYTES = 1 << 28
"""Snappy packs at most 21 times smaller, so a bare block of more than this is no honest one."""


@dataclass(frozen=True)
class LogRecord:
    """A record of one partition. `problem`: why it has no value here, `too_large` or what went wrong; else None."""

    partition: int
    offset: int
    timestamp_ms: int
    is_append_time: bool
    size_bytes: int
    """Of key and value, unpacked; 0 where nobody could say."""
    key: bytes | None
    value: bytes | None
    problem: str | None = None
    unpacked_with: int | None = None
    """Of a record that could not be unpacked: the last offset of its batch, which is unpacked whole or not at all."""

    @property
    def is_unknown(self) -> bool:
        """Whether it could not be read here, for another reason than its size; that may be this reader's fault."""
        return self.problem is not None and self.problem != TOO_LARGE


TOO_LARGE = "too_large"


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
        """Whether it is a transaction's end and holds no record for anybody."""
        return bool(self.attributes & 0x20)


def batches_of(data: bytes) -> Iterator[RecordBatch]:
    """The whole batches in an answer of a broker; the last may be cut off. Raises ValueError for what is none.

    A record, or a pack of records, in a format of long ago is a batch of which only the last offset is known.
    """
    view, at, following = memoryview(data), 0, 0
    while at + _BEGINNING.size <= len(view):
        offset, length, _, magic = _BEGINNING.unpack_from(view, at)
        end = at + _BEFORE_LENGTH_BYTES + length
        if end > len(view):
            return
        if magic < MAGIC:
            yield RecordBatch(following, offset, 0, 0, 0, -1, -1, view[at:end], magic)
            following = offset + 1
        elif magic == MAGIC and end - at >= _HEADER.size:
            batch = _headed(view[at:end])
            yield batch
            following = batch.last_offset + 1
        else:
            raise ValueError(f"the records from offset {offset} on have message format {magic}, which is none of today")
        at = end


def _headed(view: memoryview) -> RecordBatch:
    base, _, _, _, _, attributes, last, first_ms, max_ms, producer, _, _, count = _HEADER.unpack_from(view)
    return RecordBatch(base, base + last, attributes, first_ms, max_ms, producer, count, view[_HEADER.size :])


def committed(batches: Iterable[RecordBatch], aborted: Iterable[tuple[int, int]]) -> Iterator[RecordBatch]:
    """The batches that hold records for a reader of what is committed.

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


def records_of(batch: RecordBatch, partition: int, position: int, largest_bytes: int) -> Iterator[LogRecord]:
    """The records of a batch from `position` on, one at a time; of one above `largest_bytes` only what it is.

    What cannot be unpacked makes a record with a `problem` for each offset that it may have been: without key and
    value, with the stamp of the batch's newest; of the formats of long ago with none, as of a producer that stamps
    wrongly. An offset among them may hold no record at all (after compaction); only Spark can say.
    """
    following = max(position, batch.base_offset)
    try:
        stream = _Records(_unpacked(batch))
        for _ in range(batch.count):
            record = stream.next(batch, partition, largest_bytes)
            if record.offset >= following:
                following = record.offset + 1
                yield record
    except (OSError, ValueError, struct.error, pa.ArrowException) as error:
        problem = f"{type(error).__name__}: {error}"
        for offset in range(following, batch.last_offset + 1):
            stamp = (batch.max_timestamp_ms, batch.is_append_time)
            yield LogRecord(partition, offset, *stamp, 0, None, None, problem, batch.last_offset)


def _unpacked(batch: RecordBatch) -> BinaryIO:
    if batch.magic != MAGIC:
        raise ValueError(f"message format {batch.magic} of long ago")
    codec = batch.attributes & 0x07
    packed = pa.py_buffer(batch.packed)
    if codec == 0:
        return cast("BinaryIO", pa.BufferReader(packed))
    if codec == _SNAPPY:
        return io.BufferedReader(_Blocks(_snappy_blocks(batch.packed)), CHUNK_BYTES)
    if codec not in _CODECS:
        raise ValueError(f"compression {codec} is not known")
    stream = pa.CompressedInputStream(pa.BufferReader(packed), _CODECS[codec])
    return io.BufferedReader(cast("io.RawIOBase", stream), CHUNK_BYTES)


def _snappy_blocks(packed: memoryview) -> Iterator[bytes]:
    if bytes(packed[: len(_XERIAL)]) != _XERIAL:
        yield _snappy_block(packed)
        return
    at = 16
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        yield _snappy_block(packed[at + 4 : at + 4 + length])
        at += 4 + length


def _snappy_block(block: memoryview) -> bytes:
    length = shift = 0
    for byte in block[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > MOST_SNAPPY_BYTES:
        raise ValueError(f"a Snappy block of {length} bytes")
    return cast("bytes", pa.decompress(pa.py_buffer(block), length, codec="snappy", asbytes=True))


class _Blocks(io.RawIOBase):
    """Blocks, one in memory at a time, as a stream."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(buffer)  # type: ignore[arg-type]  # the stub says object
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        length = min(len(target), len(self._rest))
        target[:length], self._rest = self._rest[:length], self._rest[length:]
        return length


class _Records:
    """Records of an unpacked batch, one after the other."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0

    def next(self, batch: RecordBatch, partition: int, largest_bytes: int) -> LogRecord:
        """The next record. Raises ValueError when there is none."""
        length = self._varint()
        end = self._at + length
        self._exactly(1)  # attributes, of which there are none
        elapsed_ms, offset_delta = self._varint(), self._varint()
        key, key_bytes = self._text(MOST_KEY_BYTES if length > largest_bytes else largest_bytes)
        value, value_bytes = self._text(largest_bytes - key_bytes)
        if self._at > end:
            raise ValueError("a record is longer than it says")
        self._pass_over(end - self._at)  # headers, which nobody reads
        size_bytes = key_bytes + value_bytes
        timestamp_ms = batch.max_timestamp_ms if batch.is_append_time else batch.base_timestamp_ms + elapsed_ms
        problem = TOO_LARGE if size_bytes > largest_bytes else None
        offset = batch.base_offset + offset_delta
        return LogRecord(partition, offset, timestamp_ms, batch.is_append_time, size_bytes, key, value, problem)

    def _text(self, largest_bytes: int) -> tuple[bytes | None, int]:
        """A text and its length; only the length of one that is too large."""
        length = self._varint()
        if length < 0:
            return None, 0
        if length <= largest_bytes:
            return self._exactly(length), length
        self._pass_over(length)
        return None, length

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._exactly(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a record ends inside a number")

    def _exactly(self, length: int) -> bytes:
        data = self._stream.read(length)
        if len(data) != length:
            raise ValueError("the batch ends inside a record")
        self._at += length
        return data

    def _pass_over(self, length: int) -> None:
        while length > 0:
            length -= len(self._exactly(min(length, CHUNK_BYTES)))
