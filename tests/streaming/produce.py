"""Appending batches that no producer library would make, in a few bytes of memory: records of a gibibyte."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pyarrow as pa
from confluent_kafka.admin import AdminClient

from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.crc32c import crc32c
from jobs.runtime.kafka.wire import Broker

PRODUCE, PRODUCE_VERSION = 0, 7
ZSTD = 4
ZEROS = bytes(1 << 20)


def packed_batch(values: Iterable[bytes | int], key: bytes) -> bytes:
    """One batch, packed with zstd; a value that is a number is so many zeros."""
    packed = pa.BufferOutputStream()
    count = 0
    with pa.CompressedOutputStream(pa.PythonFile(packed, "w"), "zstd") as stream:
        for value in values:
            length = value if isinstance(value, int) else len(value)
            before = b"\0" + _varint(0) + _varint(count) + _varint(len(key)) + key + _varint(length)
            stream.write(_varint(len(before) + length + 1) + before)
            for start in range(0, length, len(ZEROS)):
                part = ZEROS[: length - start] if isinstance(value, int) else value[start : start + len(ZEROS)]
                stream.write(part)
            stream.write(_varint(0))
            count += 1
    payload: bytes = packed.getvalue().to_pybytes()
    body = struct.pack(">hiqqqhii", ZSTD, count - 1, 0, 0, -1, -1, -1, count) + payload
    header = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(body), -1, 2, crc32c(body))
    return header + body


def append(bootstrap: str, topic: str, partition: int, batch: bytes) -> None:
    """Produce a batch as it is."""
    with Broker(KafkaAccess(bootstrap=bootstrap), *_leader(bootstrap)) as broker:
        name = struct.pack(">h", len(topic)) + topic.encode()
        body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", 1) + name
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        answer = broker._ask(PRODUCE, PRODUCE_VERSION, body)
    (error,) = struct.unpack_from(">h", answer, 4 + len(name) + 4 + 4)
    assert error == 0, error


def _leader(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30)
    return host, int(port)


def _varint(number: int) -> bytes:
    zigzag, out = number << 1, bytearray()
    while zigzag >= 0x80:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])
