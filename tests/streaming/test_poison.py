"""Records that end a driver, in a real broker: they become dead letters, and nothing else differs by a record.

A driver is its sink and its source; a start that fails is one whose batch raises, as Spark does. The oracle is the
journal of the same log that was read at once, without a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves these out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from cli.main import app
from jobs.ingestion.catalog import CatalogReader
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.handover import Place
from jobs.ingestion.pipeline import JOB, build
from jobs.ingestion.sink import JournalSink
from jobs.ingestion.validator import EventValidator
from jobs.runtime.clock import MachineClock
from jobs.runtime.environment import Environment
from jobs.runtime.job import Context, TopicJob
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.kafka.marks import WITH_HEADERS, marked
from jobs.runtime.kafka.quarantine.attempts import ALONE_LIMIT
from jobs.runtime.kafka.quarantine.raw_scan import RawScan
from jobs.runtime.kafka.source import TopicSource
from jobs.runtime.kafka.topic import LATEST, Topic, list_partitions, offsets
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.transient_errors import transient_error_of
from jobs.streams import CatalogTopic, Table
from tests.streaming.brokers import running_broker
from tests.streaming.produce import append, joined_snappy_batch, packed_batch
from tests.streaming.topics import let_commands_reach

MIB = 1 << 20
PARTITIONS = 2
POISON = b"this ends every driver; " * 10
HALF_A_PAIR_TWICE = rb'{"\ud800":1,"\ud800":2}'
FLOOD = 40
LARGEST = 2**63 - 1


@pytest.fixture(scope="module")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kafka")


@pytest.fixture(scope="module")
def bootstrap(broker_folder: Path) -> Iterator[str]:
    with running_broker(broker_folder) as address:
        yield address


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    name = f"events.{request.node.name.partition('[')[0]}"
    settings = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "262144"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1, config=settings)])[name].result()
    return name


def event(number: int, **members: Any) -> bytes:
    data = {"request_id": f"r{number}", "user_id": "u", "model": "m", "operation": "chat"}
    envelope = {"specversion": "1.0", "type": "ai.inference.request.v1", "source": "g", "id": f"{number}"}
    return json.dumps({**envelope, "subject": "a", "time": "2026-11-21T10:00:00Z", "data": data, **members}).encode()


def produce(bootstrap: str, topic: str, values: list[tuple[int, bytes]], **settings: Any) -> None:
    """Append to (partition, value), packed together as far as the producer does it."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 64 * MIB, "linger.ms": 50, **settings})
    for partition, value in values:
        producer.produce(topic, value, b"a", partition)
    assert producer.flush(30) == 0


def in_transaction(bootstrap: str, topic: str, value: bytes, end: Callable[[Producer], None]) -> None:
    """A transaction with one record in every partition, each followed by its marker."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, value, None, partition)
    producer.flush()
    end(producer)


class Driver:
    """One start of ingestion: a new epoch, a sink and a source."""

    def __init__(self, spark: SparkSession, job: TopicJob[Any], config: IngestionConfig, where: Environment) -> None:
        self._ownership = ownership = Ownership.take(JOB.name, where.postgres_url, config.model_dump(mode="json"))
        self._spark, self._job, self._config, self._where = spark, job, config, where
        self._context = Context(config, where, spark, ownership, MachineClock(), Denials())
        self._sink = JournalSink(job, self._context)
        self._source = TopicSource(job, self._context, self._sink)

    def run(self, *, stores: bool = True) -> None:
        """Read all that is there: what comes before Spark, then as Spark reads. Raises what a record causes.

        A driver that `stores` nothing ends, as one whose store refuses what it is given. What is only waited for is
        tried again at once, by the same driver.
        """
        try:
            for _ in range(3):
                try:
                    self._read_all(stores=stores)
                    break
                except Exception as error:
                    self._source.failed(error)
                    if transient_error_of(error) is None:
                        raise
                    self._source = TopicSource(self._job, self._context, self._sink)
            else:
                raise RuntimeError("poison that is waited for")
        finally:
            self._sink.close()

    def _read_all(self, *, stores: bool) -> None:
        for batch in self._source.backlog(self._spark):
            if not stores and not batch.isEmpty():
                raise RuntimeError("poisoned store")
            self._sink.process(batch)
        folder = self._where.checkpoints
        folder.mkdir(exist_ok=True)
        self._sink.process(self._job.build(self._read(), self._config, folder))

    def _read(self) -> DataFrame:
        start = {str(p): self._sink.positions()[self._config.topic].get(p, -2) for p in range(PARTITIONS)}
        topic = self._config.topic
        options = {"subscribe": topic, "startingOffsets": json.dumps({topic: start}), "maxOffsetsPerTrigger": "10"}
        return marked(
            self._spark.read.format("kafka").options(**self._where.kafka.spark(), **options, **WITH_HEADERS).load()
        )


def where(database: str, folder: Path, bootstrap: str) -> Environment:
    return Environment(
        kafka=KafkaAccess(bootstrap=bootstrap),
        postgres_url=database,
        tables=str(folder),
        checkpoints=folder / "checkpoints",
        jars=Path(),
    )


@pytest.fixture
def environment(database: str, tmp_path: Path, bootstrap: str) -> Environment:
    return where(database, tmp_path, bootstrap)


def journal(folder: Path, topic: str) -> pl.DataFrame:
    """What was made of the topic's records but for our own heartbeats, in the order of each partition."""
    rows = pl.DataFrame(DeltaTable(f"{folder}/{Table.JOURNAL}").to_pyarrow_table())
    events = rows.filter((pl.col("topic") == topic) & (pl.col("source").fill_null("") != "weir"))
    assert events.sort("lsn").group_by("partition").agg(pl.col("offset").is_sorted())["offset"].all()
    return events.sort("partition", "offset").drop("lsn", "first_lsn", "log_date", "logged_at", "frontier", "rules")


def starts_until_all_is_read(
    spark: SparkSession, job: TopicJob[Any], config: IngestionConfig, environment: Environment, words: str = "poison"
) -> int:
    """How many starts it took; each of the others ended with these words."""
    for start in range(1, 20):
        try:
            Driver(spark, job, config, environment).run()
        except Exception as error:
            if words not in str(error):
                raise
        else:
            return start
    raise AssertionError("no start read everything")


def fails_on_poison(
    records: DataFrame, config: IngestionConfig, folder: Place | None, words: str = "poison"
) -> DataFrame:
    """Validating that ends the driver at one record, as faults do that nobody knows of yet."""
    is_poison = F.col("value") == F.lit(POISON)
    checked = F.when(is_poison, F.raise_error(F.lit(words)).cast("binary")).otherwise(F.col("value"))
    return build(records.withColumn("value", checked), config, folder)


def never_delivers_poison(records: DataFrame, config: IngestionConfig, folder: Place | None) -> DataFrame:
    """In the words of Spark's Kafka source, which are those of an outage."""
    return fails_on_poison(records, config, folder, "Cannot fetch record for offset 1 in 30000 milliseconds")


def topic_of(bootstrap: str, topic: str) -> Topic:
    return list_partitions(AdminClient({"bootstrap.servers": bootstrap}), [topic])[0]


def isolated(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(
            'SELECT partition, "offset", reason, journalled_at IS NOT NULL FROM isolated_records ORDER BY 1, 2'
        ).fetchall()


@pytest.mark.long
def test_a_raw_scan_reads_the_records_that_a_client_library_reads(bootstrap: str, topic: str) -> None:
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        values = [(at % PARTITIONS, event(10 * number + at) * 20) for at in range(10)]
        produce(bootstrap, topic, values, **{"compression.type": codec})
    for end in (Producer.commit_transaction, Producer.abort_transaction, Producer.commit_transaction):
        in_transaction(bootstrap, topic, end.__name__.encode(), end)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    expected = [consumer.poll(30) for _ in range(50 + 2 * PARTITIONS)]
    consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    look = RawScan(KafkaAccess(bootstrap=bootstrap), admin, list_partitions(admin, [topic])[0])
    found = look.next_records({}, 1_000, 64 * MIB, MIB)
    assert {(r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in found} == {
        (m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value()) for m in expected if m is not None
    }
    assert all(record.problem is None and record.is_append_time for record in found)
    for partition in range(PARTITIONS):
        mine = [record.offset for record in found if record.partition == partition]
        assert mine == sorted(mine)
        fewer = look.next_records({partition: mine[3]}, 2, 64 * MIB, MIB, only=partition)
        assert [record.offset for record in fewer] == mine[3:5]


@pytest.mark.long
def test_a_record_that_ends_every_driver_becomes_a_dead_letter_and_no_other_differs(
    spark: SparkSession, database: str, tmp_path: Path, bootstrap: str, topic: str
) -> None:
    config = IngestionConfig(topic=topic, max_records_per_batch=300, heartbeat_interval_seconds=60)
    values = [(number % PARTITIONS, event(number)) for number in range(8)]
    values[5] = (1, POISON)
    values[6:6] = [(0, event(2)), (0, event(4, time="2026-11-21T11:00:00Z")), (0, b"no event"), (0, b"x" * 2 * MIB)]
    produce(bootstrap, topic, values, **{"compression.type": "zstd"})
    whole = where(database, tmp_path / "whole", bootstrap)
    assert starts_until_all_is_read(spark, JOB, config, whole) == 1
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE isolated_records, attempts, sources")

    job = replace(JOB, build=fails_on_poison)
    apart = where(database, tmp_path / "apart", bootstrap)
    assert starts_until_all_is_read(spark, job, config, apart) == 2

    expected, found = journal(tmp_path / "whole", topic), journal(tmp_path / "apart", topic)
    is_poison = pl.col("value").fill_null(b"") == POISON
    assert found.filter(is_poison)["reason"].to_list() == ["unreadable"]
    assert found.filter(~is_poison).equals(expected.filter(~is_poison))
    assert found["disposition"].value_counts().sort("disposition").rows() == [
        ("accepted", 7),
        ("conflict", 1),
        ("duplicate", 1),
        ("rejected", 3),
    ]
    assert sorted(reason for _, _, reason, is_there in isolated(database) if is_there) == ["too_large", "unreadable"]
    with psycopg.connect(database) as connection:
        found_sizes = connection.execute("SELECT size_bytes FROM isolated_records ORDER BY reason").fetchall()
    assert found_sizes == [(2 * MIB + 1,), (len(POISON) + 1,)]


def stands_alone(environment: Environment, *, failed: int = 0) -> None:
    """The next record, as after the failures that divide a batch, and so many of its own."""
    with psycopg.connect(environment.postgres_url) as connection:
        connection.execute("UPDATE attempts SET records = 1, careful_records = 1, failed_alone = %s", [failed])


def test_a_record_that_only_spark_can_unpack_is_validated_and_a_failing_sink_makes_no_dead_letter(
    spark: SparkSession, environment: Environment, tmp_path: Path, topic: str
) -> None:
    append(environment.kafka.bootstrap, topic, 0, joined_snappy_batch([event(number) for number in range(3)], b"a"))
    config = IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    first = Driver(spark, JOB, config, environment)
    assert first._sink.record_bytes() > 100_000
    assert list(first._source.backlog(spark)) == []
    first._sink.close()
    stands_alone(environment)
    with pytest.raises(RuntimeError, match="poisoned store") as ended:
        Driver(spark, JOB, config, environment).run(stores=False)
    assert f"`weir journal skip {topic} 0 0 --reason TEXT`" in ended.value.__notes__[0]
    stands_alone(environment, failed=ALONE_LIMIT - 1)
    last = Driver(spark, JOB, config, environment)
    for batch in last._source.backlog(spark):
        last._sink.process(batch)
    last._sink.close()
    assert journal(tmp_path, topic)["request_id"].to_list() == ["r0", "r1", "r2"]
    assert journal(tmp_path, topic)["reason"].drop_nulls().to_list() == []
    assert isolated(environment.postgres_url) == []


@pytest.mark.long
def test_an_unstored_verdict_does_not_count_and_a_record_that_ends_every_driver_is_skipped(
    spark: SparkSession, environment: Environment, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap, database = environment.kafka.bootstrap, environment.postgres_url
    config = IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    broken = replace(JOB, build=fails_on_poison)
    produce(bootstrap, topic, [(0, POISON)])
    with pytest.raises(Exception, match="poison"):
        Driver(spark, broken, config, environment).run()
    stands_alone(environment, failed=ALONE_LIMIT - 1)
    with pytest.raises(RuntimeError, match="poisoned store"):
        Driver(spark, broken, config, environment).run(stores=False)
    assert [reason for *_, reason, _ in isolated(database)] == ["unreadable"]
    # A release that can validate it comes: it does.
    Driver(spark, JOB, config, environment).run()
    assert journal(tmp_path, topic)["reason"].to_list() == ["malformed"]
    assert isolated(database) == []

    offset = offsets(AdminClient({"bootstrap.servers": bootstrap}), topic_of(bootstrap, topic), LATEST)[0]
    produce(bootstrap, topic, [(0, POISON), (0, event(2))])
    let_commands_reach(monkeypatch, bootstrap, database, tmp_path)
    asked = ["journal", "skip", topic, "0", str(offset), "--reason", "ends ingestion", "--timeout", "0"]
    assert "is stored" in str(CliRunner().invoke(app, asked).exception)
    assert starts_until_all_is_read(spark, broken, config, environment) <= 2
    rows = journal(tmp_path, topic).select("offset", "reason", "request_id", "value").rows()[1:]
    assert rows[0] == (offset, "skipped", None, POISON)
    assert rows[1][:3] == (offset + 1, None, "r2")
    assert isolated(database) == [(0, offset, "skipped", True)]


def test_a_decompression_bomb_is_passed_over_and_its_neighbours_count(
    spark: SparkSession, database: str, tmp_path: Path, bootstrap: str, topic: str
) -> None:
    """Nothing that unpacks it whole could live in a driver's container; here nothing does.

    Nor what proves that the marker of a transaction, which lies before it, is no record. The driver that it ended had
    committed others before; the next one finds it, and many more at once.
    """
    environment = where(database, tmp_path, bootstrap)
    config = IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    produce(bootstrap, topic, [(1, event(4))])
    Driver(spark, JOB, config, environment).run()
    commits = DeltaTable(f"{tmp_path}/{Table.JOURNAL}").version()
    batch = packed_batch([event(1), 1 << 30, *[2 * MIB] * FLOOD, event(2)], key=b"a")
    assert len(batch) < 200_000
    in_transaction(bootstrap, topic, event(0), Producer.commit_transaction)
    append(bootstrap, topic, 0, batch)
    produce(bootstrap, topic, [(0, event(3))])

    second = Driver(spark, JOB, config, environment)
    for frame in second._source.backlog(spark):
        second._sink.process(frame)
    second._sink.close()

    rows = journal(tmp_path, topic)
    expected = ["r0", "r1", None, *[None] * FLOOD, "r2", "r3"]
    assert rows.filter(partition=0)["request_id"].to_list() == expected
    assert rows.filter(partition=1)["request_id"].to_list() == ["r4", "r0"]
    too_large = rows.filter(pl.col("request_id").is_null()).select("reason", "key", "value").unique().rows()
    assert too_large == [("too_large", b"a", None)]
    with psycopg.connect(database) as connection:
        sizes = connection.execute('SELECT size_bytes, detail FROM isolated_records ORDER BY "offset"').fetchall()
    assert sizes == [((1 << 30) + 1, "too_large"), *[(2 * MIB + 1, "too_large")] * FLOOD]
    assert DeltaTable(f"{tmp_path}/{Table.JOURNAL}").version() <= commits + 4


class FailingConfig(IngestionConfig):
    """Of a validator with a fault that nobody knows of yet, in Spark's workers and in the driver."""

    def validator(self) -> EventValidator:
        validator = super().validator()
        validate_block = validator._validate_block

        def failing(records: pl.DataFrame) -> pa.Table:
            if POISON in records["value"].to_list():
                raise ValueError("poison \ud800\0")
            return validate_block(records)

        validator._validate_block = failing  # type: ignore[method-assign]
        return validator


def test_a_record_that_fails_validation_or_storage_costs_no_restart(
    spark: SparkSession, environment: Environment, tmp_path: Path, topic: str
) -> None:
    bootstrap = environment.kafka.bootstrap
    values = [(number % PARTITIONS, event(number)) for number in range(20)]
    values[5:5] = [(0, HALF_A_PAIR_TWICE), (1, POISON), (0, POISON)]
    produce(bootstrap, topic, values)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(CatalogTopic.ACCOUNTS.value, HALF_A_PAIR_TWICE, b"{}")
    assert producer.flush(10) == 0
    config = FailingConfig(topic=topic, heartbeat_interval_seconds=60)
    driver = Driver(spark, JOB, config, environment)
    driver.run()

    rows = journal(tmp_path, topic)
    rejected = (
        rows.filter(pl.col("reason").is_not_null()).select("reason", "violation", "value").unique().sort("reason")
    )
    assert rejected.rows() == [
        ("malformed", "JSON (RFC 8259): the key \\ud800 occurs twice", HALF_A_PAIR_TWICE),
        ("unreadable", "Weir: ValueError: poison \\ud800\\u0000", POISON),
    ]
    assert rows["request_id"].drop_nulls().sort().to_list() == sorted(f"r{number}" for number in range(20))
    assert [(reason, is_there) for *_, reason, is_there in isolated(environment.postgres_url)] == [
        ("unreadable", True),
        ("unreadable", True),
    ]
    changes = pl.DataFrame(DeltaTable(f"{tmp_path}/{Table.JOURNAL}").to_pyarrow_table())
    changes = changes.filter(pl.col("topic") == CatalogTopic.ACCOUNTS).filter(pl.col("value") == HALF_A_PAIR_TWICE)
    assert set(changes.select("reason", "violation").rows()) == {("invalid_catalog_change", "\\ud800 occurs twice")}
    # And in the driver, which reads a few records itself.
    produce(bootstrap, topic, [(0, POISON), (0, event(20))])
    few = driver._source._few.read([topic_of(bootstrap, topic)], {topic: {0: 12, 1: 11}})
    assert few is not None
    assert {row["reason"] for row in driver._source._validate(few).to_pylist() if row["value"] == POISON} == {
        "unreadable"
    }


@pytest.mark.long
def test_a_failure_at_the_catalog_does_not_advise_to_skip_an_event(
    spark: SparkSession, environment: Environment, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap, config = environment.kafka.bootstrap, IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    produce(bootstrap, topic, [(0, event(1))])
    first = Driver(spark, JOB, config, environment)
    assert list(first._source.backlog(spark)) == []
    first._sink.close()
    stands_alone(environment)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(CatalogTopic.PLANS.value, b"poison", b"{}")
    assert producer.flush(10) == 0

    def failing(_reader: CatalogReader, changes: list[Any], *_: object) -> pl.DataFrame:
        raise RuntimeError(f"poison among {len(changes)} changes")

    monkeypatch.setattr(CatalogReader, "rows", failing)
    with pytest.raises(RuntimeError, match="poison among") as ended:
        Driver(spark, JOB, config, environment).run()
    assert getattr(ended.value, "__notes__", []) == []


@pytest.mark.long
def test_a_record_that_java_never_delivers_is_quarantined_by_its_driver(
    spark: SparkSession, environment: Environment, tmp_path: Path, topic: str
) -> None:
    bootstrap = environment.kafka.bootstrap
    config = IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    for value in (event(0), POISON, event(1)):
        append(bootstrap, topic, 0, joined_snappy_batch([value], b"a"))
    Driver(spark, replace(JOB, build=never_delivers_poison), config, environment).run()
    assert journal(tmp_path, topic).select("request_id", "reason", "value").rows() == [
        ("r0", None, event(0)),
        (None, "unreadable", None),
        ("r1", None, event(1)),
    ]
    with psycopg.connect(environment.postgres_url) as connection:
        ((detail,),) = connection.execute("SELECT detail FROM isolated_records").fetchall()
    assert "Cannot fetch record for offset 1" in detail


@pytest.mark.long
def test_what_a_disk_got_wrong_is_on_no_bill(
    spark: SparkSession, environment: Environment, tmp_path: Path, topic: str, broker_folder: Path
) -> None:
    """Only the checksum of its batch says that it is not what was sent."""
    config = IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    for number in (1, 2, 3):
        produce(environment.kafka.bootstrap, topic, [(0, event(number))])
    (segment,) = (broker_folder / "log" / f"{topic}-0").glob("*.log")
    written = segment.read_bytes()
    assert written.count(b'"r2"') == 1
    with segment.open("r+b") as log:
        log.seek(written.index(b'"r2"'))
        log.write(b'"r9"')
    assert starts_until_all_is_read(spark, JOB, config, environment, words="") == 2
    rows = journal(tmp_path, topic).select("request_id", "reason").rows()
    assert rows == [("r1", None), (None, "unreadable"), ("r3", None)]


@pytest.mark.long
def test_a_timestamp_out_of_range_ends_one_driver_at_most(
    spark: SparkSession, environment: Environment, tmp_path: Path, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": environment.kafka.bootstrap})

    def stamped_by(who: str) -> None:
        entries = {"message.timestamp.type": who, "message.timestamp.after.max.ms": str(LARGEST)}
        changes = [ConfigEntry(*at, incremental_operation=AlterConfigOpType.SET) for at in entries.items()]
        for altered in admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)]
        ).values():
            altered.result()

    stamped_by("CreateTime")
    producer = Producer({"bootstrap.servers": environment.kafka.bootstrap})
    producer.produce(topic, event(1), b"a", 0, timestamp=LARGEST)
    assert producer.flush(30) == 0
    stamped_by("LogAppendTime")
    produce(environment.kafka.bootstrap, topic, [(0, event(2))])
    config = IngestionConfig(topic=topic, heartbeat_interval_seconds=60)
    assert starts_until_all_is_read(spark, JOB, config, environment, words="overflow") <= 2
    assert journal(tmp_path, topic).select("request_id", "reason").rows() == [("r1", "unstamped"), ("r2", None)]
