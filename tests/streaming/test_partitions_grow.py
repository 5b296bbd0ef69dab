"""`events` gets partitions under traffic, 4 become 12: a real driver reads on, by itself, whatever is killed meanwhile.

Method: `oracle`. What a plain consumer reads of the topic is what the journal must hold, record for record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub leaves it out
from deltalake import DeltaTable

from jobs.runtime.kafka.topic import COMMITTED, LATEST, list_partitions, offsets
from jobs.streams import Table
from laptop.class_archive import submit_arguments
from tests.streaming.topics import Topic, every_row
from tests.waiting import wait_until

BEFORE, AFTER = 4, 12
"""As `weir topics` makes it, and as it gets."""
KEYS = 300
BURST = 2_500
"""More than the driver reads itself at once, so that Spark must."""
LIMIT_SECONDS = 120
TIME = datetime.now(UTC).isoformat()


class Ingestion:
    """A driver of ingestion as a process of its own."""

    def __init__(self, topic: Topic, database: str, jars: Path, folder: Path) -> None:
        self._folder, self._jars, self._database, self._topic = folder, jars, database, topic
        self.process: subprocess.Popen[bytes] | None = None
        settings = {"topic": topic.name, "trigger_interval_seconds": 1, "heartbeat_interval_seconds": 1}
        (folder / "config.json").write_text(json.dumps(settings))

    def start(self) -> None:
        environment = {
            "WEIR_KAFKA_BOOTSTRAP": self._topic.bootstrap,
            "WEIR_POSTGRES_URL": self._database,
            "WEIR_TABLES": str(self._folder),
            "WEIR_CHECKPOINTS": str(self._folder / "checkpoints"),
            "WEIR_JARS": str(self._jars),
            **submit_arguments(),
        }
        with (self._folder / "ingestion.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobs", "ingestion", "--config", str(self._folder / "config.json")],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver and its Java, at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def assert_lives(self) -> None:
        """It has not ended, and nobody was refused in an earlier life."""
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "ingestion.log").read_text()[-3000:]
        with psycopg.connect(self._database) as connection:
            assert connection.execute("SELECT * FROM exits").fetchall() == []


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic.make(broker, partitions=BEFORE)


@pytest.fixture
def ingestion(topic: Topic, database: str, jars: Path, tmp_path: Path) -> Iterator[Ingestion]:
    driver = Ingestion(topic, database, jars, tmp_path)
    driver.start()
    try:
        wait_until(lambda: len(rows_of(tmp_path)) > 0, "a first commit", LIMIT_SECONDS)
        yield driver
    finally:
        driver.kill()


class Gateway:
    """Sends every event twice, the second a while later, each under its account's key, as Kafka places it."""

    def __init__(self, topic: Topic) -> None:
        settings = {"partitioner": "murmur2_random", "topic.metadata.refresh.interval.ms": 300}
        self._producer = Producer({"bootstrap.servers": topic.bootstrap, "enable.idempotence": True, **settings})
        self._topic = topic
        self._lock = threading.Lock()
        self.sent = 0

    def send(self, many: int) -> None:
        """So many new events."""
        with self._lock:
            for _ in range(many):
                self._produce(self.sent)
                self.sent += 1

    def repeat(self) -> None:
        """All of it again."""
        for number in range(self.sent):
            self._produce(number)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """An event every 20 ms for as long as the block lasts."""
        stopped = threading.Event()

        def run() -> None:
            while not stopped.wait(0.02):
                self.send(1)
                self._producer.poll(0)

        sender = threading.Thread(target=run)
        sender.start()
        try:
            yield
        finally:
            stopped.set()
            sender.join()

    def _produce(self, number: int) -> None:
        account = f"account-{number % KEYS}"
        data = {"request_id": f"r{number}", "user_id": "u", "model": "m", "operation": "chat"}
        envelope = {"specversion": "1.0", "type": "ai.inference.request.v1", "source": "gateway", "id": f"{number}"}
        event = {**envelope, "subject": account, "time": TIME, "data": data}
        self._producer.produce(self._topic.name, json.dumps(event), account)
        self._producer.poll(0)


def rows_of(tables: Path) -> pl.DataFrame:
    if not DeltaTable.is_deltatable(f"{tables}/{Table.JOURNAL}"):
        return pl.DataFrame()
    return every_row(tables)


def grow(topic: Topic, partitions: int) -> None:
    """So many partitions, and a leader for each."""
    topic.admin.create_partitions([NewPartitions(topic.name, partitions)])[topic.name].result()
    topic.wait_for(partitions)


def is_used(topic: Topic, partitions: int) -> bool:
    """Whether each of so many partitions has got something."""
    known = list_partitions(topic.admin, [topic.name])[0]
    return len(known.partitions) == partitions and min(offsets(topic.admin, known, LATEST).values()) > 0


def log_of(topic: Topic) -> pl.DataFrame:
    """What the topic holds: partition, offset, stamped_at, key."""
    ends = offsets(topic.admin, list_partitions(topic.admin, [topic.name])[0], LATEST)
    consumer = Consumer({"bootstrap.servers": topic.bootstrap, **COMMITTED})
    consumer.assign([TopicPartition(topic.name, partition, OFFSET_BEGINNING) for partition in ends])
    left, found = dict(ends), []
    while any(left.values()):
        for message in consumer.consume(1_000, 0.2):
            assert message.error() is None
            partition, offset = message.partition() or 0, message.offset() or 0
            if offset < ends[partition]:
                left[partition] -= 1
                found.append((partition, offset, message.timestamp()[1], message.key()))
    consumer.close()
    schema = {"partition": pl.Int32, "offset": pl.Int64, "stamped_ms": pl.Int64, "key": pl.Binary}
    return pl.DataFrame(found, schema, orient="row")


def reaches(tables: Path, log: pl.DataFrame, topic: Topic) -> bool:
    ends = dict(log.group_by("partition").agg(pl.col("offset").max()).iter_rows())
    rows = rows_of(tables).filter(pl.col("topic") == topic.name)
    held = dict(rows.group_by("partition").agg(pl.col("offset").max()).iter_rows())
    return all(held.get(partition, -1) >= end for partition, end in ends.items())


def assert_exact(tables: Path, topic: Topic, gateway: Gateway) -> None:
    """Nothing lost, nothing doubled, order per key as Kafka gives it, repeats found wherever they are, F no lie."""
    gateway.flush()
    log = log_of(topic)
    wait_until(lambda: reaches(tables, log, topic), "the journal reaching the topic's end", LIMIT_SECONDS)
    rows = every_row(tables).filter(pl.col("topic") == topic.name)
    places = rows.select("partition", "offset")
    assert places.is_duplicated().sum() == 0, "a record occurs twice"
    assert log.join(places, on=["partition", "offset"], how="anti").is_empty(), "a record is missing"
    assert set(rows["partition"]) == set(range(AFTER))
    assert rows.group_by("partition").agg(pl.col("offset").min())["offset"].to_list() == [0] * AFTER

    events = rows.filter(pl.col("source") == "gateway")
    accepted = events.filter(pl.col("disposition") == "accepted")
    assert sorted(map(int, accepted["id"])) == list(range(gateway.sent)), "each event counts once"
    repeats = events.filter(pl.col("disposition") == "duplicate")
    assert len(repeats) == len(events) - gateway.sent == gateway.sent
    firsts = repeats.join(accepted.select("id", "lsn", pl.col("partition").alias("first_partition")), on="id")
    assert len(firsts.filter(pl.col("first_lsn") == pl.col("lsn_right"))) == len(repeats)
    moved = firsts.filter(pl.col("partition") != pl.col("first_partition"))
    assert len(moved) > 0, "no key has moved: nothing was shown"

    ordered = rows.with_columns(pl.col("offset").diff().over("partition").alias("step"))
    assert ordered["step"].drop_nulls().unique().to_list() == [1], "of a partition the journal has the log's order"
    commits = every_row(tables).group_by("logged_at").agg(pl.col("frontier").max()).sort("logged_at")
    before = commits.select("logged_at", pl.col("frontier").shift(1).alias("told"))
    stamped = rows.join(log, on=["partition", "offset"]).join(before, on="logged_at")
    lies = stamped.filter(pl.col("stamped_ms") < pl.col("told").dt.epoch("ms"))
    assert lies.is_empty(), "F had passed a record that was not read"


def assert_goes_on(tables: Path, since: datetime) -> None:
    """F passes this instant, so no partition holds it back."""

    def has_passed() -> bool:
        reached = rows_of(tables)["frontier"].max()
        return isinstance(reached, datetime) and reached > since

    wait_until(has_passed, "F passing the growth", LIMIT_SECONDS)


@pytest.mark.timeout(400)
@pytest.mark.long
def test_partitions_added_under_traffic_are_read_by_the_running_driver(
    ingestion: Ingestion, topic: Topic, tmp_path: Path
) -> None:
    """First without any events, then with few, then with many."""
    gateway = Gateway(topic)
    grow(topic, 6)
    wait_until(lambda: is_used(topic, 6), "a heartbeat in each partition", 60)
    assert_goes_on(tmp_path, datetime.now(UTC))
    with gateway.trickling():
        for partitions, burst in ((8, 0), (12, BURST)):
            grow(topic, partitions)
            gateway.send(burst)
            wait_until(lambda: is_used(topic, partitions), "a record in each partition", 60)  # noqa: B023 -- waited for
            gateway.send(burst)
            assert_goes_on(tmp_path, datetime.now(UTC))
    gateway.repeat()
    assert_exact(tmp_path, topic, gateway)
    ingestion.assert_lives()


@pytest.mark.timeout(400)
@pytest.mark.long
def test_partitions_added_while_no_driver_runs_are_read_from_their_first_record(
    ingestion: Ingestion, topic: Topic, tmp_path: Path
) -> None:
    gateway = Gateway(topic)
    with gateway.trickling():
        assert_goes_on(tmp_path, datetime.now(UTC))
        grow(topic, 8)
        gateway.send(BURST)
        ingestion.kill()
        grow(topic, 12)
        gateway.send(BURST)
        wait_until(lambda: is_used(topic, 12), "a record in each partition", 60)
        ingestion.start()
        assert_goes_on(tmp_path, datetime.now(UTC))
    gateway.repeat()
    assert_exact(tmp_path, topic, gateway)
    ingestion.assert_lives()
