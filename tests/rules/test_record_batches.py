"""Method: batches written by hand as Kafka's documentation has them, in every packing, and read back; and bombs."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.ingestion.formats import of_records
from jobs.runtime.kafka.headers import MAX_BYTES, headers_of, size_bytes, text_of
from jobs.runtime.kafka.marks import REPLAYS as HEADER
from jobs.runtime.kafka.protocol.crc32c import crc32c
from jobs.runtime.kafka.protocol.log_records import TOO_LARGE, LogRecord, records_of
from jobs.runtime.kafka.protocol.record_batches import batches_of, committed
from jobs.runtime.kafka.protocol.unpacking import CHUNK_BYTES
from jobs.runtime.kafka.quarantine.raw_scan import RawScan, average_record_bytes

MIB = 1 << 20
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
STAMP_MS = 1_780_000_000_000
STRUCTURED = b"application/cloudevents+json"
LAST_OFFSET_BYTES = range(23, 27)
"""Where a batch says which offset its last record has."""
Record = tuple[bytes | None, bytes | None]
"""Key and value."""
Headers = Sequence[tuple[bytes, bytes | None]]


def varint(number: int) -> bytes:
    zigzag, out = (number << 1) ^ (number >> 63), bytearray()
    while zigzag >= 0x80:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def text(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


TRACE: Headers = ((b"trace", b"1"),)


def packed(
    records: Sequence[Record], codec: int, deltas: Sequence[int] | None = None, headers: Headers = TRACE
) -> bytes:
    """`deltas`: of the records' offsets from the batch's first; one after the other when left out."""
    said = varint(len(headers)) + b"".join(text(name) + text(value) for name, value in headers)
    plain = bytearray()
    for number, (delta, (key, value)) in enumerate(zip(deltas or range(len(records)), records, strict=True)):
        body = b"\0" + varint(number * 7) + varint(delta) + text(key) + text(value) + said
        plain += varint(len(body)) + body
    return bytes(plain) if codec == NONE else pa.compress(bytes(plain), codec=CODEC_NAMES[codec], asbytes=True)


def batch(base: int, count: int, payload: bytes, attributes: int = APPEND_TIME, producer: int = -1) -> bytes:
    numbers = struct.pack(">hiqqqhii", attributes, count - 1, 1_000, STAMP_MS, producer, 0, 0, count)
    return with_checksum(base, numbers + payload)


def batch_at(base: int, deltas: Sequence[int]) -> bytes:
    """A batch with records at these distances from its first offset, as compaction leaves it."""
    numbers = struct.pack(">hiqqqhii", APPEND_TIME, max(deltas), 1_000, STAMP_MS, -1, 0, 0, len(deltas))
    return with_checksum(base, numbers + packed([(b"k", b"v")] * len(deltas), NONE, deltas))


def with_checksum(base: int, checked: bytes) -> bytes:
    return struct.pack(">qiibI", base, 9 + len(checked), 0, 2, crc32c(checked)) + checked


def read(data: bytes, position: int = 0, largest_bytes: int = MIB) -> list[tuple[int, Record | None]]:
    return [
        (record.offset, (record.key, record.value) if record.problem is None else None)
        for each in batches_of(data)
        for record in records_of(each, 3, position, largest_bytes)
    ]


texts = st.none() | st.binary(max_size=40) | st.just(b"x" * 3 * CHUNK_BYTES)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.tuples(texts, texts), min_size=1, max_size=5), st.sampled_from(range(5)))),
    st.integers(0, 12),
    st.integers(0, 30),
)
def test_every_record_from_the_position_on_is_read_as_it_was_written(
    batches: list[tuple[list[Record], int]], position: int, cut_off: int
) -> None:
    data, expected, base = b"", [], 0
    for records, codec in batches:
        data += batch(base, len(records), packed(records, codec), APPEND_TIME | codec)
        expected += [(base + number, record) for number, record in enumerate(records)]
        base += len(records)
    wanted = [found for found in expected if found[0] >= position]
    assert read(data, position) == wanted
    # A broker cuts its answer anywhere: the batch that is not whole is read with the next.
    assert read(data + batch(base, 1, packed([(None, b"v")], NONE))[: cut_off + 20], position) == wanted


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4, ZSTD])
def test_a_large_record_is_passed_over_and_its_neighbours_are_read(codec: int) -> None:
    large = b"\0" * (20 * MIB)
    data = batch(7, 3, packed([(b"a", b"1"), (b"b", large), (b"c", b"3")], codec), APPEND_TIME | codec)
    before, found, after = (record for each in batches_of(data) for record in records_of(each, 3, 0, MIB))
    assert (before.value, after.value) == (b"1", b"3")
    assert (found.offset, found.key, found.value, found.problem) == (8, b"b", None, TOO_LARGE)
    assert found.size_bytes == 20 * MIB + 1
    assert (found.timestamp_ms, found.is_append_time) == (STAMP_MS, True)


def test_the_size_of_a_record_includes_key_and_value_but_not_headers() -> None:
    data = batch(0, 3, packed([(b"k" * MIB, b""), (b"k" * MIB, b"1"), (b"k", b"v" * MIB)], NONE))
    found = [record for each in batches_of(data) for record in records_of(each, 0, 0, MIB)]
    assert [record.problem for record in found] == [None, TOO_LARGE, TOO_LARGE]


MARK = (HEADER.encode(), b"events/2/17")


@pytest.mark.parametrize(
    ("headers", "mark"),
    [
        ([MARK], b"events/2/17"),
        ([(b"trace", b"1"), (b"\xff", b"\xff"), (b"empty", None), MARK, (b"later", b"x")], b"events/2/17"),
        ([MARK, (MARK[0], b"events/0/0")], b"events/2/17"),
        ([(MARK[0], None), MARK], None),
        ([(b"weir-replays-not", b"events/2/17")], None),
        ([(MARK[0], b"e" * 5 * MIB), (b"n" * 5 * MIB, b"v")], None),
        ([(b"n" * 5 * MIB, b"v" * 5 * MIB), MARK], b"events/2/17"),
        ([], None),
    ],
)
def test_the_first_header_of_its_name_is_the_mark_however_large_the_others_are(
    headers: Headers, mark: bytes | None
) -> None:
    data = batch(0, 2, packed([(b"a", b"1"), (b"b", b"2" * 3 * MIB)], ZSTD, headers=headers), APPEND_TIME | ZSTD)
    found = [record for each in batches_of(data) for record in records_of(each, 0, 0, MIB)]
    assert [(record.replay_mark, record.problem) for record in found] == [(mark, None), (mark, TOO_LARGE)]


def test_a_record_that_a_producer_stamped_has_its_own_stamp() -> None:
    data = batch(0, 2, packed([(b"k", b"1"), (b"k", b"2")], NONE), attributes=0)
    found = [record for each in batches_of(data) for record in records_of(each, 0, 0, MIB)]
    assert [(record.timestamp_ms, record.is_append_time) for record in found] == [(1_000, False), (1_007, False)]


def test_javas_snappy_is_a_stream_of_blocks() -> None:
    plain = packed([(b"k", b"x" * 50_000), (b"k", b"y" * 50_000)], NONE)
    stream = io.BytesIO()
    stream.write(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    for start in range(0, len(plain), 32_768):
        block = pa.compress(plain[start : start + 32_768], codec="snappy", asbytes=True)
        stream.write(struct.pack(">i", len(block)) + block)
    data = batch(0, 2, stream.getvalue(), APPEND_TIME | SNAPPY)
    assert read(data) == [(0, (b"k", b"x" * 50_000)), (1, (b"k", b"y" * 50_000))]


@given(st.binary(min_size=4, max_size=300) | st.binary(min_size=4, max_size=4).map(lambda few: few * 1_000))
def test_oracle_the_checksum_is_that_of_one_bit_after_the_other(data: bytes) -> None:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(data) == register ^ 0xFFFFFFFF
    assert crc32c(memoryview(data)) == crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283


@given(st.sampled_from(range(5)), st.data())
def test_a_batch_with_a_flipped_bit_is_not_read(codec: int, data: st.DataObject) -> None:
    whole = batch(4, 2, packed([(b"k", b'{"input_tokens": 1000}'), (b"k", b"2")], codec), APPEND_TIME | codec)
    # What comes before says where it ends, and is no part of what is checked.
    bit = data.draw(st.integers(8 * 17, 8 * len(whole) - 1))
    turned = bytearray(whole)
    turned[bit // 8] ^= 1 << bit % 8
    (found,) = batches_of(bytes(turned))
    # As many as it says, which a bit may have made two billion.
    records = list(islice(records_of(found, 0, 0, MIB), 5))
    assert all(record.is_unknown for record in records)
    if bit // 8 not in LAST_OFFSET_BYTES:
        assert [record.offset for record in records] == [4, 5], "no offset is left without a record"


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD, 7])
def test_a_batch_that_cannot_be_decompressed_is_a_problem_for_each_offset(codec: int) -> None:
    broken = batch(4, 3, b"\xff" * 40, APPEND_TIME | codec)
    whole = batch(7, 1, packed([(b"k", b"v")], NONE))
    assert read(broken + whole, position=5) == [(5, None), (6, None), (7, (b"k", b"v"))]
    problem = next(record for each in batches_of(broken) for record in records_of(each, 0, 0, MIB)).problem
    assert problem not in (None, TOO_LARGE)


def test_records_of_aborted_transactions_are_skipped() -> None:
    def sent(base: int, producer: int, flags: int = TRANSACTIONAL) -> bytes:
        return batch(base, 1, packed([(b"k", b"%d" % base)], NONE), APPEND_TIME | flags, producer)

    data = sent(0, 1) + sent(1, 2) + sent(2, 9, 0) + sent(3, 1, TRANSACTIONAL | CONTROL) + sent(4, 1)
    kept = [each.base_offset for each in committed(batches_of(data), [(1, 0)])]
    assert kept == [1, 2, 4]


@given(st.integers(0, 4), st.sampled_from([0, 1]))
def test_records_of_old_formats_are_left_to_spark(position: int, magic: int) -> None:
    """A pack names the offset of its last record only, and is shorter than the head of a batch of today."""
    before = batch(0, 1, packed([(b"k", b"0")], NONE))
    old = struct.pack(">qiib", 3, 9, 0, magic) + b"old!"
    after = batch(4, 1, packed([(b"k", b"4")], NONE))
    unknown = [(offset, None) for offset in (1, 2, 3)]
    expected = [(0, (b"k", b"0")), *unknown, (4, (b"k", b"4"))]
    assert read(before + old + after, position) == [found for found in expected if found[0] >= position]
    (found, *_) = (record for each in batches_of(old) for record in records_of(each, 0, 3, MIB))
    assert found.is_unknown
    assert not found.is_append_time


@given(st.integers(-40, 10), st.integers(-1, 3))
def test_a_corrupt_batch_header_does_not_loop_the_scan(length: int, magic: int) -> None:
    """Nothing of it is under a checksum: where it says that the next one begins may be where it begins itself."""
    found = 0
    with suppress(ValueError):
        found = len(list(islice(batches_of(struct.pack(">qiib", 5, length, 0, magic) + bytes(40)), 100)))
    assert found < 10


def test_what_is_no_batch_is_refused() -> None:
    newer = bytearray(batch(0, 1, packed([(b"k", b"v")], NONE)))
    newer[16] = 3
    for data in (bytes(newer), struct.pack(">qiib", 0, 9, 0, 2) + b"cut!"):
        with pytest.raises(ValueError, match="message format"):
            read(data)


class Sample(RawScan):
    """A look that finds these records, whatever the log holds."""

    def __init__(self, records: list[LogRecord]) -> None:
        self._found = records

    def next_records(self, *_: object, **__: object) -> list[LogRecord]:
        return self._found


def test_a_record_of_unknown_size_counts_as_the_largest() -> None:
    known = LogRecord(0, 0, 0, True, 100, b"", b"")
    unknown, large = replace(known, size_bytes=0, problem="broken"), replace(known, size_bytes=9 * MIB)
    assert average_record_bytes(Sample([]), {}, MIB) == 1
    assert average_record_bytes(Sample([known, known]), {}, MIB) == 100
    assert average_record_bytes(Sample([unknown, large]), {}, MIB) == MIB


def test_headers_count_in_the_size_of_a_record() -> None:
    """They reach the driver with the value, so a batch of small values may be large."""
    plain = LogRecord(0, 0, 0, True, 100, b"", b"")
    assert average_record_bytes(Sample([plain, replace(plain, headers="x" * 60_000)]), {}, MIB) == 30_100


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"ce_specversion", b"1.0"), (b"ce_id", None), MARK, (b"ce_id", "größe".encode()), (b"", b"\xff")],
        [(b"content-type", b"x" * 5), (b"n" * 400, b"v" * 400)],
    ],
)
def test_all_headers_of_a_record_are_read_in_their_order(headers: Headers) -> None:
    data = batch(0, 2, packed([(b"a", b"1"), (b"b", b"2")], ZSTD, headers=headers), APPEND_TIME | ZSTD)
    found = [record for each in batches_of(data) for record in records_of(each, 0, 0, MIB)]
    expected = tuple(((name or b"").decode(), value) for name, value in headers)
    assert [headers_of(record.headers) for record in found] == [expected] * 2


@pytest.mark.parametrize("at", [0, 1])
def test_binary_mode_is_recognized_in_headers_that_are_too_large(at: int) -> None:
    large = (b"trace", b"v" * 5 * MIB)
    headers = [*[large] * at, (b"ce_specversion", b"1.0"), *[large] * (3 - at)]
    data = batch(0, 1, packed([(b"a", b"1")], ZSTD, headers=headers), APPEND_TIME | ZSTD)
    [record] = [record for each in batches_of(data) for record in records_of(each, 0, 0, MIB)]
    kept = headers_of(record.headers)
    assert ("ce_specversion", b"1.0") in kept
    assert MAX_BYTES < size_bytes(kept) < 3 * MAX_BYTES


@pytest.mark.parametrize(
    "headers",
    [
        [(b"CE_SPECVERSION", b"1.0"), (b"ce_specversion", b"1.0")],
        [(b"content-type", b"application/json"), (b"Content-Type", STRUCTURED), (b"ce_specversion", b"1.0")],
        [(b"content-type", STRUCTURED + b";" * MAX_BYTES), (b"ce_specversion", b"1.0")],
        [(b"content-type", None), (b"ce_specversion", b"1.0"), (b"content-type", STRUCTURED)],
    ],
)
def test_the_mode_of_a_record_with_too_large_headers_is_the_same_for_all_readers(headers: Headers) -> None:
    sent: Headers = [(b"trace", b"v" * MAX_BYTES), *headers]
    data = batch(0, 1, packed([(b"a", b"1")], ZSTD, headers=sent), APPEND_TIME | ZSTD)
    [record] = [record for each in batches_of(data) for record in records_of(each, 0, 0, MIB)]
    of_others = text_of([((name or b"").decode(), value) for name, value in sent])
    values = pl.Series([b"{}"], dtype=pl.Binary)
    [one, other] = [of_records(values, pl.Series([text], dtype=pl.String)) for text in (record.headers, of_others)]
    assert [series.to_list() for series in one] == [series.to_list() for series in other]
