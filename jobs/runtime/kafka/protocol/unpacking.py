"""The content of a packed record batch, as a stream: it may be 1 GiB in 100 KiB, so it is never all in memory."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO, cast

import pyarrow as pa

from jobs.runtime.kafka.protocol.record_batches import MAGIC, RecordBatch

_XERIAL = b"\x82SNAPPY\x00"
"""Java's Snappy is a stream of blocks with this prefix, 16 bytes in all; other producers send one bare block."""
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
CHUNK_BYTES = 1 << 16
MAX_SNAPPY_BYTES = 1 << 28
"""Snappy packs at most 21 times smaller, so a bare block of more than this is no honest one."""


def unpacked(batch: RecordBatch) -> BinaryIO:
    """The records of a batch, one after the other. Raises ValueError, OSError or ArrowException, also while read."""
    if batch.magic != MAGIC:
        raise ValueError(f"message format {batch.magic} of long ago")
    if not batch.is_intact:
        # Else what a disk got wrong would be billed: Java's client, which checks, ends the driver before it comes here.
        raise ValueError("the batch is not what its checksum is of")
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
    if length > MAX_SNAPPY_BYTES:
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
