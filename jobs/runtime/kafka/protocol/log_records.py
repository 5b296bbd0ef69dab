"""The records of a batch, read in constant memory.

Every client library unpacks a batch whole, and the broker's limit is on the packed size; here a record that is too
large is skipped without being held in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from jobs.runtime.kafka.headers import MAX_BYTES as MAX_HEADERS_BYTES
from jobs.runtime.kafka.headers import SPECVERSION, has_structured_type, text_of
from jobs.runtime.kafka.marks import MARKS, MAX_BYTES, RECEPTION_MARK, REPLAY_MARK
from jobs.runtime.kafka.protocol.record_batches import RecordBatch
from jobs.runtime.kafka.protocol.unpacking import CHUNK_BYTES, unpacked

TOO_LARGE = "too_large"
_COLUMNS = {header.encode(): column for column, header in MARKS.items()}
MAX_KEY_BYTES = 1 << 15
"""A longer key of a record that is too large is not kept either."""


@dataclass(frozen=True)
class LogRecord:
    """A record of one partition. `problem`: why it has no value here, `too_large` or what went wrong; else None."""

    partition: int
    offset: int
    timestamp_ms: int
    is_append_time: bool
    size_bytes: int
    """Of key and value, unpacked; 0 if unknown."""
    key: bytes | None
    value: bytes | None
    problem: str | None = None
    unpacked_with: int | None = None
    """Of a record that could not be unpacked: the last offset of its batch, which is unpacked whole or not at all."""
    replay_mark: bytes | None = None
    """Which record it is that was rejected and is sent again, as its header says."""
    reception_mark: bytes | None = None
    """When it was received first, as its header says."""
    headers: str | None = None
    """All its headers (`headers.text_of`)."""

    @property
    def place(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.partition, self.offset

    @property
    def is_unknown(self) -> bool:
        """Whether it could not be read here, for another reason than its size; that may be this reader's fault."""
        return self.problem is not None and self.problem != TOO_LARGE


def records_of(batch: RecordBatch, partition: int, position: int, largest_bytes: int) -> Iterator[LogRecord]:
    """The records of a batch from `position` on, one at a time; of one above `largest_bytes` only what it is.

    What cannot be unpacked gives a record with a `problem` for each offset that it may have had. It has no key and
    value, and the stamp of the batch's newest record; of very old formats it has no stamp. Such an offset may hold no
    record at all (after compaction); only Spark can say.
    """
    following = max(position, batch.base_offset)
    try:
        stream = _Records(unpacked(batch))
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
        key, key_bytes = self._text(MAX_KEY_BYTES if length > largest_bytes else largest_bytes)
        value, value_bytes = self._text(largest_bytes - key_bytes)
        if self._at > end:
            raise ValueError("a record is longer than it says")
        marks, headers = self._headers() if self._at < end else ({}, None)
        if self._at > end:
            raise ValueError("a record is longer than it says")
        self._pass_over(end - self._at)
        size_bytes = key_bytes + value_bytes
        timestamp_ms = batch.max_timestamp_ms if batch.is_append_time else batch.base_timestamp_ms + elapsed_ms
        problem = TOO_LARGE if size_bytes > largest_bytes else None
        offset = batch.base_offset + offset_delta
        stamp = (timestamp_ms, batch.is_append_time)
        of_past = marks.get(REPLAY_MARK), marks.get(RECEPTION_MARK)
        return LogRecord(partition, offset, *stamp, size_bytes, key, value, problem, None, *of_past, headers)

    def _headers(self) -> tuple[dict[str, bytes | None], str | None]:
        """The marks among the headers, by column, and the text of all headers (`headers.text_of`).

        Where they are larger than a record may have, the text has of the rest only what decides how the record is read,
        and one that is too large.
        """
        marks: dict[str, bytes | None] = {}
        kept: list[tuple[str, bytes | None]] = []
        deciding: dict[bool, tuple[str, bytes | None]] = {}
        left_bytes = MAX_HEADERS_BYTES
        for _ in range(self._varint()):
            name, name_bytes = self._text(MAX_HEADERS_BYTES)
            value, value_bytes = self._text(MAX_HEADERS_BYTES)
            if (column := _COLUMNS.get(name or b"")) is not None:
                marks.setdefault(column, value if value_bytes <= MAX_BYTES else None)
            left_bytes -= name_bytes + value_bytes
            header = (name or b"").decode(errors="replace"), value
            if left_bytes >= 0:
                kept.append(header)
            elif (is_structured := has_structured_type(*header)) or header[0] == SPECVERSION:
                deciding.setdefault(is_structured, header)
        if left_bytes < 0:
            kept += [*deciding.values(), ("", bytes(MAX_HEADERS_BYTES + 1))]
        return marks, text_of(kept)

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
