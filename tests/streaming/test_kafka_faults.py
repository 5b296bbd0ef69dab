"""What a topic of events may do to ingestion, on a real broker: holes, lost records, new partitions, wrong stamps."""

from __future__ import annotations

import getpass
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psycopg
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves these out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from deltalake import CommitProperties, DeltaTable, Transaction
from psycopg import sql
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.journal import summary_rows
from cli.main import app
from jobs.audit.compare.conservation import conservation, conserved, consumed_ranges, count_rows
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB
from jobs.runtime.clock import MachineClock
from jobs.runtime.effective_rules import read_history
from jobs.runtime.environment import Environment
from jobs.runtime.errors import NotYet, Refused
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import BELIEVED_AFTER_SECONDS, Denials
from jobs.runtime.kafka.heartbeat import Heartbeat
from jobs.runtime.kafka.protocol.absent_offsets import AbsentOffsets, Gap
from jobs.runtime.kafka.source import TopicSource
from jobs.runtime.kafka.topic import LATEST, TopicsReader, describe_read_topic, describe_topic, list_partitions, offsets
from jobs.runtime.kafka.topic import Topic as Known
from jobs.runtime.transient_errors import transient_error_of
from jobs.streams import CatalogTopic, Table
from metering.instants import EPOCH
from metering.vocabulary import Cause
from monitoring import metrics
from tests.clocks import HandClock
from tests.streaming.brokers import running_broker
from tests.streaming.disposing import DISPOSED, disposed
from tests.streaming.topics import Topic, batch, every_row, ingestion, journal, let_commands_reach
from tests.waiting import wait_until

CLOCK_THAT_CAN_BE_SET = """
CREATE SCHEMA slow;
CREATE TABLE slow.clock (behind interval NOT NULL);
INSERT INTO slow.clock VALUES ('0');
CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$ SELECT pg_catalog.clock_timestamp() - behind FROM slow.clock $$;
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.mark.long
def test_markers_and_aborted_records_are_passed_over_and_open_transactions_awaited(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    topic.transaction("a", "b", commit=True)
    topic.transaction("lost", "with it", commit=False)
    topic.transaction("c", commit=True)
    topic.append("d", "e", "f")
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        for withheld in ("a", "c", "e"):
            with pytest.raises(Refused, match="holds a record"):
                sink.process(batch(spark, topic, without=withheld))
        assert sink.process(batch(spark, topic)).counts[metrics.ABSENT,] >= 5
        assert journal(tmp_path)["id"].to_list() == ["a", "b", "c", "d", "e", "f"]
        assert sink.gauges()[metrics.RESIDUAL] == 0

        topic.append("g", "h")
        with pytest.raises(Refused, match="holds a record"):
            sink.process(batch(spark, topic, without="g"))
        sink.process(batch(spark, topic))
    assert journal(tmp_path)["id"].to_list()[-2:] == ["g", "h"]


def test_an_audit_reads_offsets_without_a_row_again_while_kafka_retains_them(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    topic.transaction("a", commit=True)
    topic.transaction("aborted", commit=False)
    topic.append("b", "c")
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
    access = KafkaAccess(bootstrap=broker)
    sound = conservation(str(tmp_path), access, topic.admin, None)
    assert (sound.found, sound.says.partition("; ")[2]) == (0, "3 offsets without a row hold no record")

    table = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    (lost,) = [row["offset"] for row in journal(tmp_path).filter(pl.col("id") == "b").to_dicts()]
    (known,) = list_partitions(topic.admin, [topic.name])
    absent = Known(topic.name, known.topic_id, (0,)).absent(0)
    claimed = Transaction(absent, (table.transaction_version(absent) or 0) + 1)
    table.delete("id = 'b'", commit_properties=CommitProperties(app_transactions=[claimed]))
    found = conservation(str(tmp_path), access, topic.admin, None)
    assert found.says == f"offset {lost} of partition 0 of {topic.name} holds a record that no row has"
    for deleted in topic.admin.delete_records([TopicPartition(topic.name, 0, lost + 1)]).values():
        deleted.result()
    later = conservation(str(tmp_path), access, topic.admin, None)
    assert (later.found, later.says.partition("; ")[2]) == (0, "0 offsets without a row hold no record, 4 are gone")


def test_offsets_that_cannot_be_read_again_are_not_passed(broker: str) -> None:
    topic = Topic.make(broker)
    topic.append("a", "b", "c")
    absent = AbsentOffsets(KafkaAccess(bootstrap=broker), topic.admin, topic.name)
    with pytest.raises(Refused, match="offset 1 holds a record"):
        absent.prove([Gap(0, 1, 2)])
    with pytest.raises(NotYet, match="does not have them yet"):
        absent.prove([Gap(0, 3, 4)])
    for deleted in topic.admin.delete_records([TopicPartition(topic.name, 0, 2)]).values():
        deleted.result()
    with pytest.raises(NotYet, match="gone") as waits:
        absent.prove([Gap(0, 0, 2)])
    assert waits.value.cause is Cause.KAFKA


def test_an_added_partition_holds_the_frontier_until_it_is_read(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        topic.append("a")
        sink.process(batch(spark, topic))
        reached = sink.frontier()
        assert reached is not None

        prices = Topic(broker, CatalogTopic.PRICES.value)
        new = len(list_partitions(prices.admin, [prices.name])[0].partitions)
        more = {topic.name: 2, prices.name: new + 1}
        added = topic.admin.create_partitions([NewPartitions(name, count) for name, count in more.items()])
        for made in added.values():
            made.result()
        topic.wait_for(2)
        prices.wait_for(new + 1)
        topic.append("b")
        sink.process(batch(spark, topic).where("partition = 0"))
        assert journal(tmp_path)["id"].to_list()[-1] == "b"
        assert sink.frontier() == reached

        topic.append("c", partition=1)
        prices.append("no change", partition=new)
        sink.process(batch(spark, topic))
        later = sink.frontier()
        assert later is not None
        assert later > reached
        assert journal(tmp_path)["id"].to_list()[-1] == "c"
        assert (prices.name, new) in every_row(tmp_path).select("topic", "partition").rows()
        positions = sink.positions()[topic.name]
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        assert sink.positions()[topic.name] == positions


def test_an_added_partition_gets_heartbeats_without_a_restart(broker: str) -> None:
    topic = Topic.make(broker)
    beats = Heartbeat({"bootstrap.servers": broker}, [topic.name], 1, timedelta(seconds=0.2), MachineClock())
    beats.start()
    try:
        topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result()
        topic.wait_for(2)
        listed = list_partitions(topic.admin, [topic.name])[0]
        wait_until(lambda: offsets(topic.admin, listed, LATEST)[1] > 0, "a heartbeat in the new partition")
    finally:
        beats.close()


def test_a_partition_that_lost_its_first_records_unread_is_refused(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        topic.append("a")
        sink.process(batch(spark, topic))
        topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result()
        topic.wait_for(2)
        topic.append("never", "read", partition=1)
        for deleted in topic.admin.delete_records([TopicPartition(topic.name, 1, 1)]).values():
            deleted.result()
        with pytest.raises(Refused, match="records 0 to 0 were deleted"):
            sink.process(batch(spark, topic).where("partition = 0"))
    with (
        pytest.raises(Refused, match="records 0 to 0 were deleted"),
        ingestion(spark, broker, database, tmp_path, topic.name),
    ):
        pass


def test_a_topic_that_is_recreated_while_it_is_read_is_refused(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        topic.append("a")
        sink.process(batch(spark, topic))
        before = topic.admin.delete_topics([topic.name])[topic.name]
        before.result()
        topic.create()
        topic.append("another", "another still", "one more")
        with pytest.raises(Refused, match="deleted and made again"):
            sink.process(batch(spark, topic))


def test_a_record_with_a_producer_timestamp_is_a_dead_letter(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(
        broker, message_timestamp_type="CreateTime", message_timestamp_after_max_ms="9223372036854775807"
    )
    topic.append("from 2099", timestamp=4_070_908_800_000)
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
    for altered in topic.admin.incremental_alter_configs([resource]).values():
        altered.result()
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        topic.append("a")
        sink.process(batch(spark, topic))
        first, *_, last = journal(tmp_path).iter_rows(named=True)
        assert (first["id"], first["reason"], first["received_at"]) == ("from 2099", "unstamped", EPOCH)
        assert json.loads(first["value"])["id"] == "from 2099"
        assert (last["id"], last["disposition"]) == ("a", "accepted")
        frontier = sink.frontier()
        assert frontier is not None
        assert abs(datetime.now(UTC) - frontier) < timedelta(minutes=10)


def set_back(database: str, behind: str) -> None:
    """Let the database's clock be so far behind the broker's, which is the same as a broker that is ahead."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE slow.clock SET behind = %s::interval", [behind])


@pytest.fixture
def slow(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database whose clock can be set back; it is right at first. Its search_path is not the address's."""
    for module in ("jobs.runtime.postgres.session", "jobs.runtime.environment", "deployment.stack", "tests.job_roles"):
        monkeypatch.setattr(f"{module}.in_schema", lambda url, _=None: url)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(CLOCK_THAT_CAN_BE_SET)
        connection.execute("GRANT USAGE ON SCHEMA slow TO PUBLIC; GRANT SELECT ON slow.clock TO PUBLIC")
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET search_path = slow, pg_catalog, weir").format(name))
    return database


def test_a_future_timestamp_is_awaited_or_restamped(
    spark: SparkSession, broker: str, slow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_commands_reach(monkeypatch, broker, slow, tmp_path)
    topic = Topic.make(broker)
    with ingestion(spark, broker, slow, tmp_path, topic.name) as sink:
        topic.append("a")
        sink.process(batch(spark, topic))

        topic.append("b")
        before = sink.frontier(), dict(sink.positions()[topic.name])
        set_back(slow, "1 day")
        with pytest.raises(NotYet, match="ahead of the database's clock") as waits:
            sink.process(batch(spark, topic))
        assert waits.value.cause is Cause.BROKER_CLOCK
        assert (sink.frontier(), sink.positions()[topic.name]) == before
        set_back(slow, "0")
        sink.process(batch(spark, topic))
        assert journal(tmp_path)["id"].to_list() == ["a", "b"]

        topic.append("c", "d")
        reached, position = sink.frontier(), sink.positions()[topic.name][0]
        set_back(slow, "1 day")
        with pytest.raises(NotYet) as waits:
            sink.process(batch(spark, topic))
        said = str(waits.value).rpartition("weir journal restamp ")[2].split()
        assert said == ["0", str(position), str(position + 1), "--topic", topic.name]
        asked = CliRunner().invoke(app, ["journal", "restamp", *said, "--timeout", "0"])
        assert "will count as received when the record before them was" in asked.output
        assert "is stored" in str(asked.exception)
        sink.process(batch(spark, topic))
        rows = journal(tmp_path)
        assert rows["id"].to_list() == ["a", "b", "c", "d"]
        assert rows["received_at"].to_list()[-2:] == [reached, reached]
        kept = {"restamped": [{"partition": 0, "from": position, "to": position + 1}]}
        assert [json.loads(rules) for rules in every_row(tmp_path)["rules"].drop_nulls()][1:] == [kept]

        set_back(slow, "0")
        topic.append("e")
        sink.process(batch(spark, topic))
        later = sink.frontier()
        assert reached is not None
        assert later is not None
        assert later > reached
    with psycopg.connect(slow) as connection:
        assert connection.execute("SELECT count(*) FROM restamps WHERE applied_at IS NULL").fetchone() == (0,)
    again = CliRunner().invoke(app, ["journal", "restamp", *said, "--topic", topic.name])
    assert "what it holds never changes" in str(again.exception)

    set_back(slow, "1 day")
    with pytest.raises(NotYet, match="frontier"), ingestion(spark, broker, slow, tmp_path, topic.name):
        pass


def test_a_topic_that_the_broker_denies_is_waited_for_first(broker: str) -> None:
    topic, denials, clock = Topic(broker, "not-yet-known"), Denials(), HandClock()

    def at_a_start() -> Known:
        return describe_topic(topic.admin, topic.name, denials, clock)

    for look in (at_a_start, lambda: describe_read_topic(topic.admin, topic.name)):
        with pytest.raises(NotYet, match="denies the topic not-yet-known") as found:
            look()
        assert found.value.cause is Cause.KAFKA
    # Between two requests of one look at how far a driver is behind.
    with pytest.raises((NotYet, KafkaException)) as vanished:
        offsets(topic.admin, Known(topic.name, "", (0,)), LATEST)
    obstacle = transient_error_of(vanished.value)
    assert obstacle is not None
    assert obstacle.cause is Cause.KAFKA
    clock.go(BELIEVED_AFTER_SECONDS)
    with pytest.raises(Refused, match="create it, then start again"):
        at_a_start()
    topic.create()
    assert describe_read_topic(topic.admin, topic.name) == at_a_start()


def test_only_a_skipped_record_is_a_dead_letter_with_the_name_of_the_operator(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    monkeypatch.setattr(getpass, "getuser", lambda: "ops")
    topic = Topic.make(broker)

    def skip(offset: int, *, of: str = topic.name, partition: int = 0, reason: str = "ends ingestion") -> str:
        asked = ["journal", "skip", of, str(partition), str(offset), "--reason", reason, "--timeout", "0"]
        ended = CliRunner().invoke(app, asked)
        return f"{ended.exception} {ended.stderr}"

    with (
        ingestion(spark, broker, database, tmp_path, topic.name) as sink,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        topic.append("a", "b", "c")
        sink.process(batch(spark, topic).where("id = 'a' OR source = 'weir'"))
        at_b = sink.positions()[topic.name][0]
        assert "what it holds never changes" in skip(at_b - 1)
        assert "there is no record" in skip(at_b + 2)
        assert "no partition 1" in skip(at_b, partition=1)
        assert "reads the topics" in skip(at_b, of="__consumer_offsets")
        assert "say why" in skip(at_b, reason=" ")
        assert "is stored" in skip(at_b)
        assert "will already become a dead letter, as `skipped`" in skip(at_b)
        sink.process(batch(spark, topic))
        rows = journal(tmp_path).select("id", "disposition", "reason").rows()
        assert rows == [("a", "accepted", None), ("b", "rejected", "skipped"), ("c", "accepted", None)]
        kept = connection.execute("SELECT asked_by, detail, journalled_at IS NOT NULL FROM isolated_records")
        assert [(who.partition("@")[0], *rest) for who, *rest in kept] == [("ops", "ends ingestion", True)]

        # A driver that ended between the commit and this; and a skip that came while its record was validated.
        connection.execute("UPDATE isolated_records SET journalled_at = NULL")
        late = 'INSERT INTO isolated_records SELECT topic_id, topic, partition, "offset" + 1, reason, detail'
        connection.execute(f"{late} FROM isolated_records")
        with ingestion(spark, broker, database, tmp_path, topic.name):
            found = connection.execute('SELECT "offset", journalled_at IS NOT NULL FROM isolated_records')
            assert found.fetchall() == [(at_b, True)]


def test_a_change_of_the_catalog_can_be_skipped_too(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    topic, plans = Topic.make(broker), CatalogTopic.PLANS.value
    with (
        ingestion(spark, broker, database, tmp_path, topic.name) as sink,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        topic.append("a")
        sink.process(batch(spark, topic))
        end = offsets(topic.admin, list_partitions(topic.admin, [plans])[0], LATEST)[0]
        for plan in ("skipped", "taken"):
            value = json.dumps({"op": "c", "after": {"plan": plan}, "ts_ms": 1})
            topic.producer.produce(plans, value, b"{}", partition=0)
        assert topic.producer.flush(30) == 0
        asked = ["journal", "skip", plans, "0", str(end), "--reason", "no plan of ours", "--timeout", "0"]
        assert "is stored" in str(CliRunner().invoke(app, asked).exception)
        topic.append("b")
        sink.process(batch(spark, topic))
        rows = every_row(tmp_path).filter(pl.col("topic") == plans, pl.col("offset") >= end).sort("offset")
        assert rows.select("disposition", "reason").rows() == [("rejected", "skipped"), ("accepted", None)]
        known = 'SELECT topic, "offset", journalled_at IS NOT NULL FROM isolated_records'
        assert connection.execute(known).fetchall() == [(plans, end, True)]
        # A driver that ended between the commit and this.
        connection.execute("UPDATE isolated_records SET journalled_at = NULL")
        with ingestion(spark, broker, database, tmp_path, topic.name):
            assert connection.execute(known).fetchall() == [(plans, end, True)]


def test_a_skip_reports_when_it_is_done_and_when_it_came_too_late(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    topic = Topic.make(broker)
    with (
        ingestion(spark, broker, database, tmp_path, topic.name) as sink,
        psycopg.connect(database, autocommit=True) as connection,
        ThreadPoolExecutor() as people,
    ):

        def asked(offset: int) -> Future[Result]:
            command = ["journal", "skip", topic.name, "0", str(offset), "--reason", "ends ingestion"]
            answer = people.submit(CliRunner().invoke, app, command)
            wait_until(lambda: pending() == [(offset,)], "the skip being asked for")
            return answer

        def pending() -> list[tuple[int]]:
            return connection.execute('SELECT "offset" FROM isolated_records WHERE journalled_at IS NULL').fetchall()

        topic.append("a")
        sink.process(batch(spark, topic))
        topic.append("skipped", "validated")
        topic.transaction("b", commit=True)
        topic.append("c")
        # Heartbeats stand between them, wherever they came.
        at = {row["id"]: row["offset"] for row in batch(spark, topic).select("id", "offset").collect()}
        marker = next(offset for offset in itertools.count(at["b"]) if offset not in at.values())
        skipped = asked(at["skipped"])
        sink.process(batch(spark, topic).where("id IN ('a', 'skipped') OR source = 'weir'"))
        done = skipped.result(60)
        assert (done.exit_code, "Done: `weir dead-letters --reason skipped`" in done.output) == (0, True)

        # Ingestion has looked which records are to be skipped before these were.
        isolated = sink._isolated
        for offset, why in ((at["validated"], "the journal has it as accepted"), (marker, "no record")):
            late = asked(offset)
            with monkeypatch.context() as before:
                before.setattr(isolated, "pending", lambda _topics: {})
                sink.process(batch(spark, topic).where(f"offset <= {offset + 1}"))
            answer = late.result(60)
            assert why in str(answer.exception)
            assert pending() == []
    assert journal(tmp_path).select("id", "reason").rows() == [
        *[("a", None), ("skipped", "skipped"), ("validated", None)],
        *[("b", None), ("c", None)],
    ]


def wait_past(instant: datetime) -> None:
    wait_until(lambda: datetime.now(UTC) > instant, f"{instant} being over")


def test_oracle_the_rules_in_the_journal_reproduce_every_disposition(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    """A change holds from the first row of the first batch that it decided, and nothing before is decided again."""
    topic = Topic.make(broker)
    strict = {"accept_past_seconds": 3_600}
    forgetful = {"accept_past_seconds": 86_400, "dedupe_horizon_seconds": 1, "exact_horizon_seconds": 1}
    starts: list[tuple[int, dict[str, int]]] = []
    for config in (strict, forgetful, strict):
        with ingestion(spark, broker, database, tmp_path, topic.name, **config) as sink:
            wait_past(datetime.now(UTC) + timedelta(seconds=1))
            topic.occurred_at = datetime.now(UTC)
            topic.append("same", "same")
            topic.append(f"old{len(starts)}", age=timedelta(hours=2))
            starts.append((len(every_row(tmp_path)) + 1, config))
            sink.process(batch(spark, topic))
    history = read_history(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"))[0]
    found = every_row(tmp_path).filter(pl.col("topic") == topic.name)
    expected = disposed(pl.DataFrame(batch(spark, topic).toArrow()), found, history)
    assert found.select(DISPOSED).rows() == expected.rows()
    assert [held.first for held in history] == [first for first, _ in starts]
    for held, (_, config) in zip(history, starts, strict=True):
        assert held.rules.items() >= config.items()
    of_starts = found.filter(pl.col("id").str.starts_with("old"))["disposition"].to_list()
    assert of_starts == ["rejected", "accepted", "rejected"]


def test_transactions_are_read_to_their_end_committed_or_aborted(broker: str) -> None:
    """As changes of the catalog do where Kafka Connect writes each exactly once."""
    topic = Topic.make(broker)
    known = list_partitions(topic.admin, [topic.name])
    reader = TopicsReader(KafkaAccess(bootstrap=broker).librdkafka(), topic.admin, known, {(topic.name, 0): 0})
    for ids, is_committed in ((["a", "b"], True), (["aborted"], False), (["c"], True)):
        topic.transaction(*ids, commit=is_committed)
        messages, _ = reader.read_to_end()
        assert [json.loads(message.value() or b"")["id"] for message in messages] == (ids if is_committed else [])
    wait_until(lambda: not reader.has_news(), "nothing being left")
    reader.close()


def source_of(topic: Topic, sink: Any, tables: Path) -> TopicSource:
    """What ingestion reads with, beside a sink of the test's own."""
    where = Environment(
        kafka=KafkaAccess(bootstrap=topic.bootstrap),
        postgres_url="postgresql://nobody@localhost/none",
        tables=str(tables),
        checkpoints=tables / "checkpoints",
        jars=Path(),
    )
    context: Any = SimpleNamespace(
        config=IngestionConfig(topic=topic.name),
        environment=where,
        ownership=SimpleNamespace(epoch=1),
        clock=MachineClock(),
        denials=Denials(),
    )
    return TopicSource(JOB, context, sink)


def test_a_query_is_not_idle_before_its_first_batch(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    for _ in range(2_000):
        topic.producer.produce(topic.name, b"{}", partition=0)
    assert topic.producer.flush(30) == 0
    sink: Any = SimpleNamespace(
        driver_rows=None,
        record_bytes=lambda: 400,
        batch_bytes_per_record=lambda: 400,
        positions=lambda: {topic.name: {0: 0}},
        frontier=lambda: None,
        frontiers=lambda: {topic.name: None},
    )
    source = source_of(topic, sink, tmp_path)
    source.stream(spark)
    assert source.found() is None
    assert source.must_restart()
    batch = source.stream(spark)
    monkeypatch.setattr(TopicSource, "rest_after_seconds", 0.0)
    assert not source.must_restart()
    assert source.instead_of(batch) is batch
    assert source.must_restart(), "now it may rest"
    source.close()


def test_batches_grow_again_after_large_records(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    topic, size, at = Topic.make(broker), [1 << 20], [0]
    for _ in range(500):
        topic.producer.produce(topic.name, b"{}", partition=0)
    assert topic.producer.flush(30) == 0
    sink: Any = SimpleNamespace(
        driver_rows=None,
        record_bytes=lambda: size[0],
        batch_bytes_per_record=lambda: size[0],
        positions=lambda: {topic.name: {0: at[0]}},
        frontier=lambda: None,
        frontiers=lambda: {topic.name: None},
    )
    source = source_of(topic, sink, tmp_path)
    source.stream(spark)
    assert source._limit == 102
    size[0] = 400
    assert source.lag()[0] == 500
    assert not source.must_restart(), "no batch has shown yet that they are small"
    at[0] = 102
    assert source.lag()[0] == 398
    assert source.must_restart()
    source.stream(spark)
    assert source._limit == 1_020, "what follows may be as large again"
    at[0] = 250
    assert source.lag()[0] == 250
    assert not source.must_restart(), "no more waits than a batch takes"
    source.close()


def test_records_that_retention_deleted_unread_are_passed_only_after_somebody_accepted_exactly_these(
    spark: SparkSession,
    broker: str,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The position moves with a count, a row of the journal that says which, and an entry of the activity log."""
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    command = ["journal", "accept-loss", topic.name, "0", "--reason", "the disk was full", "--yes", "--timeout", "0"]

    def accept() -> str:
        return str(CliRunner().invoke(app, command).exception)

    def delete(before: int) -> None:
        for deleted in topic.admin.delete_records([TopicPartition(topic.name, 0, before)]).values():
            deleted.result()

    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        topic.append("a")
        sink.process(batch(spark, topic))
        (read,) = sink.positions()[topic.name].values()
    assert "nothing is lost" in accept()
    topic.append(*"bcdef")
    delete(read + 2)
    refused = pytest.raises(Refused, match=rf"records {read} to .*accept-loss {topic.name} 0")
    with refused, ingestion(spark, broker, database, tmp_path, topic.name):
        pass
    assert "is stored" in accept()
    delete(read + 3)
    with refused, ingestion(spark, broker, database, tmp_path, topic.name):
        pass
    accept()
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        assert sink.positions()[topic.name] == {0: read + 3}
        sink.process(batch(spark, topic))
        assert sink.status()["residual"] == 0
    assert journal(tmp_path)["id"].to_list() == ["a", "e", "f"]
    said = [json.loads(text) for text in every_row(tmp_path)["rules"].drop_nulls()]
    (lost,) = [entry for rules in said for entry in rules.get("lost", [])]
    assert (lost["topic"], lost["from"], lost["to"], lost["reason"]) == (
        *(topic.name, read, read + 2),
        "the disk was full",
    )
    table = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    [described] = list_partitions(topic.admin, [topic.name])
    ranges = consumed_ranges(table, [described])
    # Other tests have changed the catalog on this broker, and its topics are in the journal, too.
    rows = {key: count for key, count in count_rows(table).items() if key[0] == topic.name}
    [line] = summary_rows(ranges, rows, by_reason=False)
    assert (line["lost"], line["residual"]) == (3, 0)
    assert "3 records that were deleted unread" in conserved(ranges, {(topic.name, 0): sum(rows.values())}).says
    with psycopg.connect(database) as connection:
        accepted = "SELECT count(*), bool_and(journalled_at IS NOT NULL) FROM accepted_losses"
        assert connection.execute(accepted).fetchone() == (2, True)
        logged = "SELECT count(*) FROM activity_log WHERE document::jsonb ->> 'target' LIKE '%%accepted_losses'"
        assert connection.execute(logged).fetchone() == (2,)
        # Killed between the two commits: the next driver says what the journal has passed.
        connection.execute("UPDATE accepted_losses SET journalled_at = NULL")
    topic.append("g")
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        assert sink.status()["residual"] == 0
        sink.process(batch(spark, topic))
        assert sink.status()["residual"] == 0
    assert [len(json.loads(text).get("lost", [])) for text in every_row(tmp_path)["rules"].drop_nulls()].count(1) == 1
    with psycopg.connect(database) as connection:
        assert connection.execute(accepted).fetchone() == (2, True)
