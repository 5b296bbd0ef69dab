"""A few records of a topic, read by the driver and by Spark from a real broker: the same, or left to Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB, RECORD
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.driver_records import DriverRecords, TopicLimits
from jobs.runtime.kafka.marks import FIRST_RECEIVED, WITH_HEADERS, marked
from jobs.runtime.kafka.marks import REPLAYS as HEADER
from jobs.runtime.kafka.quarantine.raw_scan import RawScan
from jobs.runtime.kafka.topic import EARLIEST, list_partitions, offsets
from tests.streaming.produce import append, packed_batch
from tests.streaming.test_driver_rows import jobs_of
from tests.streaming.topics import Topic, batch, ingestion, journal

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def read(topic: Topic, positions: dict[int, int], most: TopicLimits | None = None) -> pa.Table | None:
    reader = DriverRecords(KafkaAccess(bootstrap=topic.bootstrap).librdkafka(), topic.admin, most or TopicLimits())
    try:
        return reader.read(list_partitions(topic.admin, [topic.name]), {topic.name: positions})
    finally:
        reader.close()


def beginning(topic: Topic) -> dict[int, int]:
    return offsets(topic.admin, list_partitions(topic.admin, [topic.name])[0], EARLIEST)


def read_by_spark(spark: SparkSession, topic: Topic) -> list[tuple[Any, ...]]:
    records = marked(
        spark.read.format("kafka")
        .options(**WITH_HEADERS)
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic.name)
        .load()
    )
    return in_order(records.select(*RECORD).toArrow())


def in_order(records: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in records.to_pylist()), key=lambda row: row[3:5])


def test_differential_the_driver_reads_what_spark_reads(spark: SparkSession, broker: str) -> None:
    topic = Topic.make(broker, partitions=3)
    for number, codec in enumerate(CODECS):
        producer = Producer({"bootstrap.servers": broker, "linger.ms": 50, "compression.type": codec})
        for at in range(10):
            key, value = (None, b"a") if at == 3 else (b"k", None) if at == 4 else (b"\xff", b"\0" * at * 1_000)
            producer.produce(topic.name, value, key, partition=(number + at) % 3)
        assert producer.flush(30) == 0
    topic.transaction("aborted-1", "aborted-2", commit=False)
    topic.append("between")
    topic.transaction("committed", commit=True)
    topic.transaction("aborted-3", commit=False)
    found = read(topic, beginning(topic))
    assert found is not None
    expected = read_by_spark(spark, topic)
    assert in_order(found) == expected
    assert len(expected) == 52
    # From anywhere: in the middle of a batch, on a marker, at the end.
    places = [*sorted({row[4] for row in expected if row[3] == 0}), topic._end() - 1, topic._end()]
    for place in places:
        later = read(topic, {**beginning(topic), 0: place})
        assert later is not None
        assert in_order(later) == [row for row in expected if row[3] != 0 or row[4] >= place]


MARKED: list[list[tuple[str, str | bytes | None]]] = [
    [],
    [("trace", b"1")],
    [(HEADER, b"events/0/1")],
    [("trace", None), (HEADER, b"events/0/2"), (HEADER, b"events/0/3")],
    [(HEADER, None), (HEADER, b"events/0/4")],
    [(HEADER, b"")],
    [(HEADER, b"\xff\xfe")],
    [("größe", "ö"), (HEADER.upper(), b"events/0/5")],
]


def test_differential_driver_spark_and_raw_scan_find_the_same_marks(spark: SparkSession, broker: str) -> None:
    topic = Topic.make(broker)
    for number, headers in enumerate(MARKED):
        topic.producer.produce(topic.name, str(number), b"k", partition=0, headers=headers)
        assert topic.producer.flush(30) == 0
    found = read(topic, beginning(topic))
    assert found is not None
    marks = [None, None, b"events/0/1", b"events/0/2", None, b"", b"\xff\xfe", None]
    assert found["replay_mark"].to_pylist() == marks
    assert in_order(found) == read_by_spark(spark, topic)
    look = RawScan(KafkaAccess(bootstrap=broker), topic.admin, list_partitions(topic.admin, [topic.name])[0])
    records = look.next_records({}, 100, 1 << 20, 1 << 20)
    assert [record.replay_mark for record in records] == marks
    assert [record.headers for record in records] == found["record_headers"].to_pylist()


def test_differential_both_marks_of_a_record_are_found_in_any_order(spark: SparkSession, broker: str) -> None:
    topic = Topic.make(broker)
    both: list[tuple[str, str | bytes | None]] = [(HEADER, b"events/0/1"), (FIRST_RECEIVED, b"2024-01-01T00:00:00Z")]
    for headers in (both, both[::-1], both[1:], [("trace", b"1"), *both, (FIRST_RECEIVED, b"later")], both[:1]):
        topic.producer.produce(topic.name, b"v", b"k", partition=0, headers=headers)
        assert topic.producer.flush(30) == 0
    found = read(topic, beginning(topic))
    assert found is not None
    mark = b"2024-01-01T00:00:00Z"
    assert found["reception_mark"].to_pylist() == [mark, mark, mark, mark, None]
    assert in_order(found) == read_by_spark(spark, topic)
    look = RawScan(KafkaAccess(bootstrap=broker), topic.admin, list_partitions(topic.admin, [topic.name])[0])
    records = look.next_records({}, 100, 1 << 20, 1 << 20)
    assert [record.reception_mark for record in records] == [mark, mark, mark, mark, None]
    assert [record.replay_mark for record in records] == [b"events/0/1"] * 2 + [None] + [b"events/0/1"] * 2
    assert [record.headers for record in records] == found["record_headers"].to_pylist()


def test_a_header_that_the_client_library_cannot_read_is_left_to_spark_and_the_raw_scan(
    spark: SparkSession, broker: str
) -> None:
    topic = Topic.make(broker)
    append(broker, topic.name, 0, packed_batch([b"{}"], b"k", [(b"\xff", b"x"), (HEADER.encode(), b"events/0/1")]))
    append(broker, topic.name, 0, packed_batch([b"{}"], b"k", [(b"trace", b"\xff")]))
    for _ in range(20):
        # Python calls a method otherwise once it knows it.
        assert read(topic, beginning(topic)) is None
    later = read(topic, {0: 1})
    assert later is not None
    assert len(later) == 1
    assert [row[-2] for row in read_by_spark(spark, topic)] == [b"events/0/1", None]
    look = RawScan(KafkaAccess(bootstrap=broker), topic.admin, list_partitions(topic.admin, [topic.name])[0])
    assert [record.replay_mark for record in look.next_records({}, 9, 1 << 20, 1 << 20)] == [b"events/0/1", None]


def test_uncommitted_records_are_neither_read_nor_awaited(broker: str) -> None:
    topic = Topic.make(broker)
    topic.append("first")
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, b"later", partition=0)
    producer.flush(30)
    found = read(topic, beginning(topic))
    assert found is not None
    assert found["offset"].to_pylist() == [0]
    producer.abort_transaction()


def test_one_reader_reads_on_from_where_it_was_each_time(broker: str) -> None:
    topic = Topic.make(broker, partitions=2)
    reader = DriverRecords(KafkaAccess(bootstrap=broker).librdkafka(), topic.admin)
    positions = beginning(topic)
    described = list_partitions(topic.admin, [topic.name])
    for number in range(20):
        topic.append(*[f"{number}-{at}" for at in range(number % 3)], partition=number % 2)
        found = reader.read(described, {topic.name: positions})
        assert found is not None
        assert found["partition"].to_pylist() == [number % 2] * (number % 3)
        for partition, offset in zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True):
            assert offset == positions[partition]
            positions[partition] = offset + 1
    reader.close()


def test_what_a_producer_stamped_is_not_read(broker: str) -> None:
    topic = Topic.make(broker, message_timestamp_type="CreateTime")
    topic.append("far", timestamp=5)
    found = read(topic, beginning(topic))
    assert found is not None
    assert found.select(["timestamp", "timestampType"]).cast(
        pa.schema([("timestamp", pa.int64()), ("timestampType", pa.int32())])
    ).to_pylist() == [{"timestamp": 0, "timestampType": 0}]


def test_many_or_large_or_lost_records_are_for_spark(broker: str) -> None:
    topic = Topic.make(broker, partitions=2, max_message_bytes=str(16 << 20))
    topic.append("a", "b", "c")
    start = beginning(topic)
    assert read(topic, start, TopicLimits(offsets=2)) is None
    assert read(topic, start, TopicLimits(value_bytes=1 << 18)) is not None
    assert read(topic, {}) == read(topic, start), "a partition without a position begins with its first record"
    assert read(topic, {**start, 2: 0}) is None, "a partition that the query does not know"
    assert read(topic, {0: 4, 1: 0}) is None, "a topic that ends before the position"
    append(broker, topic.name, 1, packed_batch([64 << 20], b"a"))
    assert read(topic, start) is None, "64 MiB in a few kilobytes"
    assert read(topic, {**start, 1: 1}) is not None


def test_a_few_records_cost_no_job_of_spark_and_are_not_read_again(
    spark: SparkSession, database: str, broker: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker, partitions=2)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
        topic.append("a", "b", "a", partition=1)
        few, before = read(topic, dict(sink.positions()[topic.name])), jobs_of(spark)
        assert few is not None
        assert sink.process(JOB.validator(IngestionConfig(topic=topic.name))(few)).records == 3
        assert jobs_of(spark) == before
        # What Spark brings of them later is known.
        assert sink.process(batch(spark, topic)).records == 0
    assert journal(tmp_path).select("id", "disposition").rows() == [
        *(("a", "accepted"), ("b", "accepted"), ("a", "duplicate")),
    ]


def test_keys_and_headers_count_as_values_do(broker: str) -> None:
    """Packed they cost their producer nothing, and a thousand of them are more than a driver has."""
    for what in ({"key": b"k" * 300_000}, {"headers": {"x": b"h" * 300_000}}):
        topic = Topic.make(broker)
        producer = Producer({"bootstrap.servers": broker, "linger.ms": 50, "compression.type": "zstd"})
        for _ in range(8):
            producer.produce(topic.name, b"v", **what)
        assert producer.flush(30) == 0
        assert read(topic, beginning(topic)) is None
