"""Executors that are killed in each stage of a batch: what each application stores is, to the last digit, the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.ingestion.pipeline import build
from jobs.ingestion.sink import JournalSink
from jobs.runtime.kafka.marks import WITH_HEADERS, marked
from jobs.runtime.kafka.topic import LATEST, list_partitions, offsets
from jobs.runtime.spark import has_executors
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.streams import Table
from metering.vocabulary import EventType
from tests.chart.helm import of_kind, render
from tests.clocks import HandClock
from tests.conftest import fresh_database
from tests.executor_kills import STAGES, Kills
from tests.orphans import orphans, remove_orphans
from tests.pipelines.billing import NOON
from tests.pipelines.test_sums_of_parts import TABLES, VOLATILE, rows_kept
from tests.streaming.executors import EXECUTORS, session_with_executors
from tests.streaming.journals import Journal, event, heartbeat
from tests.streaming.test_billing_rules_change import SHORT, Stage
from tests.streaming.test_driver_rows import sessionization
from tests.streaming.test_joins_large_batches import (
    DECLARED,
    driver,
    in_many_ranges,
    stored,
    take,
    transactions,
    universe,
    waits,
)
from tests.streaming.test_task_rows import more
from tests.streaming.topics import Topic, every_row, ingestion

RECORDS = 60


@pytest.fixture(scope="module")
def executors(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with session_with_executors(jars, tmp_path_factory.mktemp("executors")) as session:
        assert has_executors(session)
        yield session


def test_executors_that_are_lost_one_by_one_end_no_driver_of_the_chart_and_many_at_once_do(
    executors: SparkSession,
) -> None:
    """By what Spark counts with on Kubernetes; without the chart's setting it forgets none."""
    jvm: Any = executors.sparkContext._jvm
    deploy, clock = jvm.org.apache.spark.deploy, jvm.org.apache.spark.util.ManualClock()
    found = render("quickstart.yaml", values={"jobDefaults": {"mode": "cluster"}})
    application = of_kind(found, "SparkApplication")["weir-joins"]
    conf = jvm.org.apache.spark.SparkConf(False).set("spark.executor.instances", "1")
    for name, value in application["spec"]["sparkConf"].items():
        conf.set(name, value)
    most = deploy.ExecutorFailureTracker.maxNumExecutorFailures(conf)
    tracker = deploy.ExecutorFailureTracker(conf, clock)
    for _ in range(most + 1):
        tracker.registerExecutorFailure()
        clock.advance(2 * 3_600_000)
        assert tracker.numFailedExecutors() <= most
    for _ in range(most + 1):
        tracker.registerExecutorFailure()
    assert tracker.numFailedExecutors() > most


@pytest.fixture
def databases(postgres_url: str, database: str) -> Iterator[tuple[str, str]]:
    """One for the drivers that nothing disturbs, and one for those whose executors are killed."""
    with fresh_database(postgres_url) as other:
        yield database, other


@pytest.fixture
def kills() -> Kills:
    return Kills(EXECUTORS)


def started(kills: Kills, executors: SparkSession) -> int:
    """How many executors were started so far, once all run: they are numbered."""
    running = kills.all_running(executors)
    assert len(running) == EXECUTORS
    return 1 + max(map(int, running))


def topic_of_records(broker: str) -> Topic:
    """Two partitions with events, repeats of events in the other partition, and a record that is none."""
    topic = Topic.make(broker, partitions=2)
    for number in range(RECORDS):
        value = topic.event(f"event-{number % (RECORDS - 5)}")
        topic.producer.produce(topic.name, value, b"a", partition=number % 2)
    topic.producer.produce(topic.name, b"{", b"a", partition=0)
    assert topic.producer.flush(30) == 0
    return topic


def validated(spark: SparkSession, topic: Topic, sink: JournalSink, ends: dict[int, int]) -> DataFrame:
    """All records up to these offsets, as ingestion's query gives them."""
    records = marked(
        spark.read.format("kafka")
        .options(**WITH_HEADERS)
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", json.dumps({topic.name: ends}))
        .load()
    )
    return build(records, sink._config, sink._beside())


def test_ingestion_writes_the_same_journal_whichever_of_its_passes_loses_an_executor(  # noqa: PLR0917
    executors: SparkSession,
    broker: str,
    databases: tuple[str, str],
    tmp_path: Path,
    kills: Kills,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, folders = HandClock(datetime.now(UTC)), [tmp_path / name for name in ("whole", "killed")]
    monkeypatch.setattr("tests.streaming.topics.MachineClock", lambda: clock)
    monkeypatch.setattr(JournalSink, "range_rows", RECORDS // 4)
    topic, before = topic_of_records(broker), started(kills, executors)
    with ExitStack() as held:
        whole, killed = [
            held.enter_context(ingestion(executors, broker, database, tables, topic.name, driver_rows=1))
            for database, tables in zip(databases, folders, strict=True)
        ]
        admin = AdminClient({"bootstrap.servers": broker})
        ends = dict(offsets(admin, list_partitions(admin, [topic.name])[0], LATEST))
        whole.process(validated(executors, topic, whole, ends))
        assert started(kills, executors) == before, "nothing was killed so far"
        kills.install(monkeypatch.setattr)
        killed.process(kills.validating(validated(executors, topic, killed, ends)))
        assert killed.positions() == whole.positions()
        assert killed.frontier() == whole.frontier()
    assert kills.stages == {*STAGES["ingestion"]}
    assert started(kills, executors) == before + 2
    expected = every_row(folders[0])
    assert every_row(folders[1]).equals(expected, null_equal=True)
    assert len(expected) > RECORDS
    assert not orphans(folders[0], Table.JOURNAL)
    left = orphans(folders[1], Table.JOURNAL)
    for kind in ("validated", "summary", "parquet"):
        assert any(kind in name for name in left), kind
    remove_orphans(folders[1], Table.JOURNAL, clock.now().date())
    assert every_row(folders[1]).equals(expected, null_equal=True)


def test_joins_writes_the_same_usage_whichever_of_its_stages_loses_an_executor(
    executors: SparkSession, database: str, tmp_path: Path, kills: Kills, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_many_ranges(monkeypatch)
    whole, killed = [Journal(tmp_path / name, declared=DECLARED) for name in ("whole", "killed")]
    for rows in universe(3):
        for journal in (whole, killed):
            journal.commit(rows)
    undisturbed, before = driver(executors, database, whole, 1), started(kills, executors)
    take(undisturbed, whole, 1, whole.next_lsn)
    assert started(kills, executors) == before, "nothing was killed so far"
    disturbed = driver(executors, database, killed, 1)
    kills.install(monkeypatch.setattr)
    take(disturbed, killed, 1, killed.next_lsn)
    assert kills.stages == {*STAGES["joins"]}
    assert started(kills, executors) == before + 3
    assert waits(disturbed) == waits(undisturbed)
    expected = stored(whole)
    assert stored(killed).equals(expected)
    assert len(expected) > 10
    assert transactions(killed) == transactions(whole)
    # What waits is in files that only a driver knows.
    undisturbed.close()
    disturbed.close()
    assert not orphans(whole.tables, Table.USAGE)
    left = orphans(killed.tables, Table.USAGE)
    for kind in ("read", "outcomes", "parquet"):
        assert any(kind in name for name in left), kind
    remove_orphans(killed.tables, Table.USAGE, datetime(2026, 1, 1, tzinfo=UTC).date())
    assert stored(killed).equals(expected)


PROOF = ("positions", "batches")
UNLIKE = {*VOLATILE, "committed_at", "duration_ms", "input_table", "retracted_at", "session_id"}


def rows_stored(database: str, tables: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """The rows of these tables, and how far and by which batches they came to be."""
    with psycopg.connect(database, autocommit=True) as connection:
        return {name: rows_kept(connection, name, UNLIKE) for name in (*tables, *PROOF)}


def test_billing_stores_the_same_sums_where_an_executor_is_lost_while_they_are_made(
    executors: SparkSession, databases: tuple[str, str], tmp_path: Path, kills: Kills, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = started(kills, executors)
    for number, database in enumerate(databases):
        stage = Stage(executors, database, tmp_path / str(number))
        stage.driver_rows = 1
        for minutes in (40, 41):
            stage.grow(more(stage, 60), NOON + timedelta(minutes=minutes))
        if number:
            assert started(kills, executors) == before, "nothing was killed so far"
            kills.install(monkeypatch.setattr)
        stage.fold_all(stage.driver(SHORT))
    assert kills.stages == {*STAGES["billing"]}
    assert started(kills, executors) == before + 1
    expected = rows_stored(databases[0], TABLES)
    assert rows_stored(databases[1], TABLES) == expected
    assert expected["usage_windows"]


def visits(seed: int) -> list[dict[str, Any]]:
    """Requests of ten users over hours, some of which make gaps of half an hour."""
    chance, second, rows = random.Random(seed), 0, list[dict[str, Any]]()
    for number in range(120):
        second += chance.choice([1, 60, 400, 2_500])
        at = {"account": chance.choice("ab"), "user_id": f"u{chance.randint(0, 4)}"}
        rows.append(event(EventType.REQUEST, f"r{seed}.{number}", second, **at))
    return [*rows, heartbeat(second + 10)]


@pytest.mark.long
def test_sessionization_stores_the_same_sessions_whichever_side_of_its_shuffle_loses_an_executor(
    executors: SparkSession, databases: tuple[str, str], tmp_path: Path, kills: Kills, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch loses one while it is read, and the next one while sessions are made of what was read."""
    before = started(kills, executors)
    for number, database in enumerate(databases):
        journal = Journal(tmp_path / str(number))
        sink = sessionization(executors, database, Path(journal.tables))
        if number:
            assert started(kills, executors) == before, "nothing was killed so far"
            kills.install(monkeypatch.setattr)
        for seed in (1, 2):
            first = journal.next_lsn
            for rows in (visits(seed), visits(seed + 10)):
                journal.commit(rows)
            sink.process(by_spark(executors, journal, first))
    assert kills.stages == {*STAGES["sessionization"]}
    assert started(kills, executors) == before + 2
    expected = rows_stored(databases[0], ("sessions",))
    assert rows_stored(databases[1], ("sessions",)) == expected
    assert len(expected["sessions"]) > 10


def by_spark(spark: SparkSession, journal: Journal, first: int) -> DataFrame:
    """The rows from `first` on, read by tasks."""
    files = DeltaTable(f"{journal.tables}/{Table.JOURNAL}").file_uris()
    rows = spark.read.parquet(*files).where(f"lsn >= {first}")
    return rows.select(*SESSIONIZATION.columns(SESSIONIZATION.config()))
