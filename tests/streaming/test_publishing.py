"""Whoever follows is told: each correction, and the newest of each window, once, whoever is killed or frozen."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves three of them out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from deployment.topics import ensure_topics
from jobs.billing.outbox import announce
from jobs.billing.publishing import Publisher, PublishingThread
from jobs.runtime.errors import Fenced
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.postgres.ownership import Ownership
from metering.vocabulary import Outcome, Published
from monitoring import metrics
from monitoring.instruments import REGISTRY
from tests.following import Follower, committed, refuse_other_windows, table, truth
from tests.pipelines.billing import bill, usage_row
from tests.pipelines.test_outbox import LATE
from tests.streaming.brokers import running_broker
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
TOPICS = tuple(Published)
ROWS = 3_000
"""Of usage; about ten seconds of folding."""
STRIKES = 9


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def topics(bootstrap: str) -> Iterator[str]:
    """The broker's address, with both topics empty."""
    for topic in TOPICS:
        metrics.PUBLISHING_BLOCKED.set(-1, topic=topic.value)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    yield bootstrap
    for gone in admin.delete_topics([topic.value for topic in TOPICS]).values():
        gone.result()
    wait_until(lambda: not {*TOPICS} & set(admin.list_topics(timeout=10).topics), "the topics being gone")
    ensure_topics(bootstrap)


def owner(database: str) -> Ownership:
    """The next driver of billing, which says what it publishes."""
    ownership = Ownership.take("billing", database, {})
    with ownership.transaction() as cursor:
        announce(cursor, TOPICS)
    return ownership


def publisher_of(ownership: Ownership, database: str, bootstrap: str) -> Publisher:
    return Publisher(database, {"bootstrap.servers": bootstrap}, TOPICS, ownership.epoch)


def publish_all(publisher: Publisher) -> None:
    for topic in publisher.topics:
        while publisher.publish(topic):
            pass


class Started:
    """One program that a test starts again and again."""

    def __init__(self, log: Path, *command: str) -> None:
        self._command = (sys.executable, *command)
        self._log = log
        self._starts = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log, env=environment)

    def runs(self) -> bool:
        """Whether the last one that was started has said so."""
        return self._log.read_text().count("runs\n") == self._starts

    def again(self) -> None:
        """Kill it, and restart it."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def followed(self) -> subprocess.Popen[bytes]:
        """Freeze it, and start another; gives the frozen one."""
        frozen = self.process
        frozen.send_signal(signal.SIGSTOP)
        self.process = self._start()
        return frozen


@contextmanager
def started(log: Path, *command: str) -> Iterator[Started]:
    program = Started(log, *command)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def followed(file: Path, topic: Published) -> dict[str, Any]:
    """What the example holds, by id."""
    with closing(sqlite3.connect(file)) as held:
        return {identity: json.loads(data) for identity, data in held.execute(f"SELECT id, data FROM {topic}")}


def done(file: Path) -> list[tuple[str, str, int]]:
    with closing(sqlite3.connect(file)) as held:
        return held.execute("SELECT topic, id, version FROM done").fetchall()


@pytest.mark.long
def test_the_example_ends_with_the_tables_each_correction_once_under_kills(
    topics: str, database: str, tmp_path: Path
) -> None:
    chance, file = random.Random(15), tmp_path / "followed.sqlite"
    driver = ("-m", "tests.streaming.folding_driver", database, topics, str(ROWS))
    frozen: list[subprocess.Popen[bytes]] = []
    with (
        psycopg.connect(database, autocommit=True) as connection,
        started(tmp_path / "driver.log", *driver) as billing,
        started(tmp_path / "example.log", "examples/follow.py", topics, str(file)) as example,
    ):

        def is_folded() -> bool:
            found = connection.execute("SELECT next_position FROM positions").fetchone()
            return found is not None and found[0] > ROWS

        for strike in range(STRIKES):
            wait_until(billing.runs, "billing running", 60)
            time.sleep(chance.uniform(0.1, 1.5))
            if strike % 3 == 2:
                frozen.append(billing.followed())
            else:
                billing.again()
            if strike % 2:
                example.again()
            if strike % 3 == 0 and frozen:
                # It wakes beside its successor's successor, and may have messages in hand.
                frozen[-1].send_signal(signal.SIGCONT)
        wait_until(is_folded, "all being folded", 60, every_seconds=0.5)
        for zombie in frozen:
            zombie.send_signal(signal.SIGCONT)

        def is_told() -> bool:
            assert example.process.poll() is None, (tmp_path / "example.log").read_text()
            assert billing.process.poll() is None, (tmp_path / "driver.log").read_text()
            return all(followed(file, topic) == truth(connection, topic) for topic in TOPICS)

        wait_until(is_told, "the example having all", 60, every_seconds=0.5)
        for zombie in frozen:
            zombie.wait(30)
        wait_until(lambda: connection.execute("SELECT FROM unsent_windows").rowcount == 0, "the outbox being empty", 30)
        windows, corrections = (truth(connection, topic) for topic in TOPICS[::-1])
        assert len(corrections) > ROWS / 10
        applied = done(file)
        assert len(set(applied)) == len(applied), "each version of each id was applied once"
        assert sorted(one for topic, one, _ in applied if topic == "corrections") == sorted(corrections)
        told = committed(topics, Published.WINDOWS)
        assert table(told) == windows, "the topic is the table"
        assert refuse_other_windows(connection, told) == len(windows) > 0


@pytest.mark.long
def test_states_of_a_window_are_published_in_order(topics: str, database: str) -> None:
    """Two drivers take turns: whoever was followed sends nothing any more, whatever it has in hand."""
    with psycopg.connect(database, autocommit=True) as connection:
        first, lsn = owner(database), 0
        publisher = publisher_of(first, database, topics)
        for _ in range(5):
            for _ in range(3):
                lsn += 1
                bill(connection, [usage_row(lsn), usage_row(1_000 + lsn, delay=LATE, account="bolt")])
                publish_all(publisher)
            successor = owner(database)
            publisher, zombie = publisher_of(successor, database, topics), publisher
            bill(connection, [usage_row(2_000 + lsn)])
            publish_all(publisher)
            bill(connection, [usage_row(3_000 + lsn)])
            with pytest.raises(KafkaException):
                zombie.publish(Published.WINDOWS)
            with pytest.raises(Fenced):
                zombie.publish(Published.WINDOWS)
            zombie.close()
        publish_all(publisher)
        found = committed(topics, Published.WINDOWS)
        for key in {message.key() for message in found}:
            versions = [json.loads(m.value() or b"")["data"]["version"] for m in found if m.key() == key]
            assert versions == sorted(versions)
        assert table(found) == truth(connection, Published.WINDOWS)
        publisher.close()


@pytest.mark.long
def test_the_table_is_made_again_of_the_topic_that_kafka_has_compacted(topics: str, database: str) -> None:
    """Whoever comes a year later reads what compaction has left from the beginning, and has all of the table."""
    with psycopg.connect(database, autocommit=True) as connection:
        dying, changes = publisher_of(owner(database), database, topics), 20
        for lsn in range(1, changes):
            bill(connection, [usage_row(lsn), usage_row(1_000 + lsn, delay=LATE, account="bolt")])
            publish_all(dying)
        bill(connection, [usage_row(2_000, account="bolt")])
        successor = publisher_of(owner(database), database, topics)
        publish_all(successor)
        before = committed(topics, Published.WINDOWS)
        assert len(before) > 2 * len(table(before)), "of most windows there are many states"
        assert refuse_other_windows(connection, before) == len(table(before))
        compact(topics, Published.WINDOWS)

        def is_compacted() -> bool:
            # A segment that is still written to is not compacted: each change ends one that is a moment old.
            bill(connection, [usage_row(3_000 + int(time.monotonic() * 10))])
            publish_all(successor)
            return len(committed(topics, Published.WINDOWS)) < len(before) / 2

        wait_until(is_compacted, "Kafka compacting the topic", 120, every_seconds=1)
        left = committed(topics, Published.WINDOWS)
        assert refuse_other_windows(connection, left) == len(truth(connection, Published.WINDOWS))
        for each in (dying, successor):
            each.close()


def compact(bootstrap: str, topic: Published) -> None:
    """Let Kafka compact it as soon as it can."""
    soon = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in soon.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.value, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()


def test_what_was_read_before_a_successor_began_is_refused_by_kafka(topics: str, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        zombie = publisher_of(owner(database), database, topics)
        bill(connection, [usage_row(1)])
        publish_all(zombie)
        bill(connection, [usage_row(2)])
        stale = zombie._outbox.next(zombie._session(), Published.WINDOWS)
        assert stale is not None
        successor = publisher_of(owner(database), database, topics)
        bill(connection, [usage_row(3)])
        publish_all(successor)
        with pytest.raises(KafkaException):
            zombie._sender(Published.WINDOWS).send("windows", [(b"stale", b"{}")])
        assert table(committed(topics, Published.WINDOWS)) == truth(connection, Published.WINDOWS)
        for each in (zombie, successor):
            each.close()


def test_changes_sent_again_after_a_kafka_commit_are_applied_once(topics: str, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        dying = publisher_of(owner(database), database, topics)
        bill(connection, [usage_row(1, delay=LATE, outcome=Outcome.ABANDONED)])
        dying._outbox.sent = lambda *_: None  # type: ignore[method-assign]
        publish_all(dying)
        publisher = publisher_of(owner(database), database, topics)
        publish_all(publisher)
        follower = Follower()
        for topic in TOPICS:
            messages = committed(topics, topic)
            assert len(messages) == 2
            for message in messages:
                follower.take(topic, message.value() or b"")
            assert follower.held[topic] == truth(connection, topic)
        assert len(follower.done) == 2
        for each in (dying, publisher):
            each.close()


def waits(topic: Published) -> float | None:
    return REGISTRY.get_sample_value("weir_publishing_blocked", {"topic": topic.value})


def test_publishing_waits_for_a_missing_topic_while_the_other_goes_on(topics: str, database: str) -> None:
    admin = AdminClient({"bootstrap.servers": topics})
    admin.delete_topics(["corrections"])["corrections"].result()
    wait_until(lambda: "corrections" not in admin.list_topics(timeout=10).topics, "the topic being gone")
    with psycopg.connect(database, autocommit=True) as connection:
        ownership = owner(database)
        bill(connection, [usage_row(1, delay=LATE)])
        thread = PublishingThread(publisher_of(ownership, database, topics), 0.2)
        try:
            wait_until(lambda: waits(Published.CORRECTIONS) == 1 and waits(Published.WINDOWS) == 0, "one waiting")
            assert table(committed(topics, Published.WINDOWS)) == truth(connection, Published.WINDOWS)
            assert "corrections" not in admin.list_topics(timeout=10).topics, "nobody made it by asking for it"
            ensure_topics(topics)
            wait_until(lambda: waits(Published.CORRECTIONS) == 0, "both being published")
        finally:
            thread.close()
        (told,) = committed(topics, Published.CORRECTIONS)
        assert json.loads(told.value() or b"")["data"] == next(iter(truth(connection, Published.CORRECTIONS).values()))


def test_without_kafka_billing_goes_on_and_reports_that_publishing_is_blocked(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        ownership = owner(database)
        nowhere: KafkaSettings = {"bootstrap.servers": "127.0.0.1:1"}
        thread = PublishingThread(Publisher(database, nowhere, [Published.WINDOWS], ownership.epoch), 0.1)
        bill(connection, [usage_row(1)])
        wait_until(lambda: waits(Published.WINDOWS) == 1, "publishing waiting")
        bill(connection, [usage_row(2)])
        thread.close()
        assert len(connection.execute("SELECT FROM unsent_windows").fetchall()) == 2


def test_closing_does_not_wait_for_a_broker_that_does_not_answer() -> None:
    begun, answered, ended = threading.Event(), threading.Event(), threading.Event()

    class Waiting(Publisher):
        def publish(self, topic: Published) -> bool:  # noqa: ARG002 -- the protocol of a publisher
            begun.set()
            answered.wait(60)
            return False

        def close(self) -> None:
            ended.set()

    thread = PublishingThread(Waiting("", {"bootstrap.servers": ""}, [Published.WINDOWS], 1), 0.1)
    assert begun.wait(60)
    thread.close()
    assert not ended.is_set(), "it waited for the broker"
    answered.set()
    assert ended.wait(60)


def test_an_unavailable_database_is_waited_for(topics: str, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        publisher = publisher_of(owner(database), database, topics)
        thread = PublishingThread(publisher, 0.1)
        try:
            wait_until(lambda: waits(Published.WINDOWS) == 0, "publishing")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'weir billing publisher' AND datname = current_database()"
            )
            bill(connection, [usage_row(1)])
            wait_until(lambda: connection.execute("SELECT FROM unsent_windows").rowcount == 0, "it being sent")
        finally:
            thread.close()
        assert table(committed(topics, Published.WINDOWS)) == truth(connection, Published.WINDOWS)
