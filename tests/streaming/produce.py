"""Appending batches that no producer library would make, in a few bytes of memory: records of a gibibyte."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from confluent_kafka.admin import AdminClient

from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.protocol.crc32c import crc32c
from jobs.runtime.kafka.protocol.wire import Broker
from tests.waiting import wait_until

PRODUCE, PRODUCE_VERSION = 0, 7
NOT_LED_YET = (3, 5, 6)
"""Error codes of Kafka: no such partition here, no leader, led by another broker. Clients send again after these."""
SNAPPY, ZSTD = 2, 4
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
"""How a stream of Java's Snappy begins."""
ZEROS = bytes(1 << 20)


Headers = Sequence[tuple[bytes, bytes]]


def packed_batch(values: Iterable[bytes | int], key: bytes, headers: Headers = ()) -> bytes:
    """One batch, packed with zstd; a value that is a number is so many zeros. Each record has the headers."""
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(pa.PythonFile(packed, "w"), "zstd") as stream:
        count = _write_records(stream.write, values, key, headers)
    return _batch(ZSTD, count, packed.getvalue().to_pybytes())


def joined_snappy_batch(values: Iterable[bytes], key: bytes) -> bytes:
    """One batch in two streams of Snappy, the first of them empty: Java reads on with the second, Weir's look not."""
    records = io.BytesIO()
    count = _write_records(records.write, values, key)
    block = pa.compress(records.getvalue(), codec="snappy", asbytes=True)
    return _batch(SNAPPY, count, XERIAL + XERIAL + struct.pack(">i", len(block)) + block)


def _write_records(
    write: Callable[[bytes], object], values: Iterable[bytes | int], key: bytes, headers: Headers = ()
) -> int:
    """How many there were."""
    count, texts = 0, [text for header in headers for text in header]
    after = _varint(len(headers)) + b"".join(_varint(len(text)) + text for text in texts)
    for value in values:
        length = value if isinstance(value, int) else len(value)
        before = b"\0" + _varint(0) + _varint(count) + _varint(len(key)) + key + _varint(length)
        write(_varint(len(before) + length + len(after)) + before)
        for start in range(0, length, len(ZEROS)):
            write(ZEROS[: length - start] if isinstance(value, int) else value[start : start + len(ZEROS)])
        write(after)
        count += 1
    return count


def _batch(codec: int, count: int, payload: bytes) -> bytes:
    body = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count) + payload
    header = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(body), -1, 2, crc32c(body))
    return header + body


def append(bootstrap: str, topic: str, partition: int, batch: bytes) -> None:
    """Produce a batch as it is, once the broker leads the partition: it may know a new topic before that."""
    with Broker(KafkaAccess(bootstrap=bootstrap), *_leader(bootstrap)) as broker:
        name = struct.pack(">h", len(topic)) + topic.encode()
        body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", 1) + name
        body += struct.pack(">iii", 1, partition, len(batch)) + batch

        def is_appended() -> bool:
            answer = broker._ask(PRODUCE, PRODUCE_VERSION, body)
            (error,) = struct.unpack_from(">h", answer, 4 + len(name) + 4 + 4)
            assert error in (0, *NOT_LED_YET), error
            return bool(error == 0)

        wait_until(is_appended, f"the broker leading {topic}/{partition}", 30)


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
