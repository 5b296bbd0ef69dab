"""`events.ordered` is what the oracle says, whoever is killed or frozen: each event once, in order by key."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves three of them out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from deltalake import CommitProperties, Transaction

from deployment.topics import ensure_topics
from jobs.billing.ordered.journal import JournalParts
from jobs.billing.ordered.publishing import OrderedPublisher
from jobs.billing.ordered.state import Progress, announce_ordered, behind_seconds, read_progress
from jobs.runtime.delta.table import REMOVED
from jobs.runtime.errors import Fenced, Refused
from jobs.runtime.kafka.transactions import Transactions
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import EVENTS_TOPIC
from metering.vocabulary import ORDERED_EVENTS
from monitoring import metrics
from monitoring.instruments import REGISTRY
from tests.following import committed
from tests.journal_files import account_of, commit, value_of
from tests.ordered_events import SECOND, Ordered, Row, expected
from tests.streaming.brokers import running_broker
from tests.streaming.test_publishing import started
from tests.waiting import wait_until

NOON = 1_700_000_000 * SECOND
WAIT_SECONDS = 5
COMMITS = 120
STRIKES = 6
TEXTS = ("false", "true")


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def topic(bootstrap: str) -> Iterator[str]:
    """The broker's address, with the topic empty."""
    ensure_topics(bootstrap, with_optional=True)
    yield bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([ORDERED_EVENTS])[ORDERED_EVENTS].result()
    wait_until(lambda: ORDERED_EVENTS not in admin.list_topics(timeout=10).topics, "the topic being gone")


def made_up(commits: int, seed: int) -> list[list[Row]]:
    """Commits a second apart, with events of the minute before and of some seconds after, and rows that are none."""
    chance, lsn = random.Random(seed), 1
    found: list[list[Row]] = []
    for number in range(commits):
        frontier = NOON + (number - number % chance.randint(1, 3)) * SECOND
        frontier = max(frontier, found[-1][0].frontier_us or 0 if found else 0)
        rows = []
        for _ in range(chance.randint(1, 12)):
            is_event = chance.random() < 0.8
            at = frontier + chance.randint(-12 * SECOND, 3 * SECOND)
            rows.append(Row(lsn, at if is_event else None, frontier))
            lsn += 1
        found.append(rows)
    return found


def headers_of(message: Message) -> dict[str, str]:
    headers: Any = message.headers() or []
    return {name: value.decode() for name, value in headers}


def ordered(messages: list[Message]) -> tuple[list[Ordered], int]:
    """What a consumer has that drops what it has seen of a partition; and how many repeats it dropped.

    A repeat is the event that it was, and behind it come the events that came behind it.
    """
    highest: dict[int, int] = {}
    seen: dict[int, tuple[bytes | None, tuple[tuple[str, str], ...]]] = {}
    found, repeats = [], 0
    for message in messages:
        headers = headers_of(message)
        sequence, partition = int(headers["weir-sequence"]), message.partition() or 0
        content = message.value(), tuple(headers.items())
        if sequence <= highest.get(partition, -1):
            assert seen[sequence] == content, "one sequence is one event"
            repeats += 1
            continue
        highest[partition], seen[sequence] = sequence, content
        lsn = int(headers["weir-lsn"])
        assert message.value() == value_of(lsn)
        assert (message.key() or b"").decode() == (account_of(lsn) if lsn % 5 else "gateway")
        assert headers["weir-topic"] == EVENTS_TOPIC
        assert headers["weir-offset"] == str(lsn)
        found.append(Ordered(sequence, lsn, headers["weir-late"] == "true"))
    return sorted(found, key=lambda one: one.sequence), repeats


def owner(database: str) -> Ownership:
    ownership = Ownership.take("billing", database, {})
    with ownership.transaction() as cursor:
        announce_ordered(cursor, is_wanted=True)
    return ownership


def publisher_of(database: str, bootstrap: str, tables: Path, wait_seconds: int = WAIT_SECONDS) -> OrderedPublisher:
    return OrderedPublisher(
        database,
        {"bootstrap.servers": bootstrap},
        str(tables),
        owner(database).epoch,
        wait_seconds=wait_seconds,
        step_events=7,
    )


def publish_all(publisher: OrderedPublisher) -> None:
    while publisher.publish():
        pass


def oracle(commits: list[list[Row]], first_lsn: int = 1) -> list[Ordered]:
    return expected([row for rows in commits for row in rows], lambda _: WAIT_SECONDS, first_lsn)


@pytest.mark.long
def test_the_topic_is_that_of_the_oracle_while_the_driver_is_killed_and_frozen(
    topic: str, database: str, tmp_path: Path
) -> None:
    chance, commits, tables = random.Random(3), made_up(COMMITS, 7), tmp_path / "tables"
    wanted = oracle(commits)
    driver = ("-m", "tests.streaming.ordering_driver", database, topic, str(tables), str(WAIT_SECONDS))
    frozen: list[subprocess.Popen[bytes]] = []
    with psycopg.connect(database, autocommit=True) as connection, started(tmp_path / "log", *driver) as billing:

        def has_begun() -> bool:
            found = connection.execute("SELECT next_position FROM ordered_events").fetchone()
            return found is not None and found[0] is not None

        # Before there is a journal, so that it begins with the first row.
        wait_until(has_begun, "the topic having begun", 60)
        for number, rows in enumerate(commits):
            commit(tables, rows)
            if number % (COMMITS // STRIKES) == 5:
                wait_until(billing.runs, "billing running", 60)
                time.sleep(chance.uniform(0.5, 2))
                if chance.random() < 0.4:
                    frozen.append(billing.followed())
                else:
                    billing.again()
        wait_until(billing.runs, "billing running", 60)
        for zombie in frozen:
            zombie.send_signal(signal.SIGCONT)

        def is_published() -> bool:
            assert billing.process.poll() is None, (tmp_path / "log").read_text()
            found = connection.execute("SELECT sequence, sent_lsn FROM ordered_events").fetchone()
            return found == (wanted[-1].sequence, None)

        wait_until(is_published, "all being published", 120, every_seconds=0.5)
        for zombie in frozen:
            zombie.wait(30)
    found, _ = ordered(committed(topic, ORDERED_EVENTS))
    assert any(one.is_late for one in found)
    assert found == wanted


def test_what_kafka_has_and_the_database_does_not_know_is_sent_again_with_the_same_sequence(
    topic: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = made_up(20, 1)
    dying = publisher_of(database, topic, tmp_path)
    publish_all(dying)
    for rows in commits:
        commit(tmp_path, rows)
    with monkeypatch.context() as patched:
        patched.setattr("jobs.billing.ordered.publishing.move", _fails)
        with pytest.raises(psycopg.OperationalError):
            dying.publish()
    # With another wait, which is for what comes later: what is sent again is what it was.
    successor = publisher_of(database, topic, tmp_path, wait_seconds=0)
    publish_all(successor)
    found, repeats = ordered(committed(topic, ORDERED_EVENTS))
    assert repeats > 0
    assert found == oracle(commits)
    with pytest.raises((KafkaException, Fenced)):
        publish_all(dying)
    for each in (dying, successor):
        each.close()


def test_a_driver_that_wakes_after_it_was_followed_changes_no_wait_and_stops_no_successor(
    topic: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = made_up(20, 9)
    first = publisher_of(database, topic, tmp_path)
    publish_all(first)
    first.close()
    for rows in commits:
        commit(tmp_path, rows)
    frozen = publisher_of(database, topic, tmp_path, wait_seconds=60)
    followed: list[OrderedPublisher] = []

    # The successor has begun too, and has sent nothing yet.
    with monkeypatch.context() as patched:

        def reads_and_freezes(connection: psycopg.Connection[Any]) -> Progress | None:
            found = read_progress(connection)
            patched.setattr("jobs.billing.ordered.publishing.read_progress", read_progress)
            successor = publisher_of(database, topic, tmp_path)
            successor.publish()
            followed.append(successor)
            return found

        patched.setattr(OrderedPublisher, "_step", lambda _self, _topic, progress: (progress, True))
        patched.setattr("jobs.billing.ordered.publishing.read_progress", reads_and_freezes)
        with pytest.raises(Fenced):
            frozen.publish()
    publish_all(followed[0])
    found, _ = ordered(committed(topic, ORDERED_EVENTS))
    assert found == oracle(commits)
    for each in (frozen, *followed):
        each.close()


def _fails(*_: object) -> None:
    raise psycopg.OperationalError("the session was lost")


def test_it_begins_with_what_is_accepted_from_then_on_and_anew_after_it_was_left_out(
    topic: str, database: str, tmp_path: Path
) -> None:
    commits = made_up(60, 2)
    for rows in commits[:20]:
        commit(tmp_path, rows)
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    for rows in commits[20:40]:
        commit(tmp_path, rows)
    publish_all(publisher)
    first, _ = ordered(committed(topic, ORDERED_EVENTS))
    assert first == oracle(commits[:40], commits[20][0].lsn)
    with psycopg.connect(database, autocommit=True) as connection:
        assert behind_seconds(connection) is not None
        announce_ordered(connection.cursor(), is_wanted=False)
        assert behind_seconds(connection) is None
    for rows in commits[40:45]:
        commit(tmp_path, rows)
    with pytest.raises(Fenced):
        publish_all(publisher)
    again = publisher_of(database, topic, tmp_path)
    publish_all(again)
    for rows in commits[45:]:
        commit(tmp_path, rows)
    publish_all(again)
    found, repeats = ordered(committed(topic, ORDERED_EVENTS))
    assert repeats == 0
    assert found == [*first, *oracle(commits, commits[45][0].lsn)]
    for each in (publisher, again):
        each.close()


def test_an_event_that_was_erased_is_not_published_and_keeps_its_number(
    topic: str, database: str, tmp_path: Path
) -> None:
    commits = made_up(20, 4)
    wanted = oracle(commits)
    gone = [one.lsn for one in wanted[::3]]
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    for rows in commits:
        commit(tmp_path, rows, without_value=gone)
    counted = sent_events()
    publish_all(publisher)
    found, _ = ordered(committed(topic, ORDERED_EVENTS))
    assert found == [one for one in wanted if one.lsn not in gone]
    assert sent_events() - counted == len(found), "what was erased is not counted as published"
    publisher.close()


def sent_events() -> float:
    """How many events this process has published, in time or late."""
    found = [REGISTRY.get_sample_value(metrics.ORDERED_EVENTS_SENT.name, {"is_late": text}) for text in TEXTS]
    return sum(value or 0.0 for value in found)


def note_erasure(connection: psycopg.Connection[Any]) -> None:
    """A person was forgotten now."""
    connection.execute(
        "INSERT INTO erasures (erasure, account, person, key_id, reason, asked_by, erased_at)"
        " VALUES (1, 'account-1', sha256('x'), 'k', 'asked', 'me', now())"
    )


def test_nothing_is_sent_that_was_read_before_an_erasure_was_complete(
    topic: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person is forgotten while a step has the events in hand: they are read again, and by then they are erased."""
    commits = made_up(10, 5)
    wanted = oracle(commits)
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    for rows in commits:
        commit(tmp_path, rows)
    contents = JournalParts.contents

    with psycopg.connect(database, autocommit=True) as connection:

        def forgotten_meanwhile(*arguments: Any) -> object:
            found = contents(*arguments)
            monkeypatch.setattr(JournalParts, "contents", contents)
            note_erasure(connection)
            return found

        monkeypatch.setattr(JournalParts, "contents", forgotten_meanwhile)
        assert publisher.publish()
        assert committed(topic, ORDERED_EVENTS) == []
    publish_all(publisher)
    found, _ = ordered(committed(topic, ORDERED_EVENTS))
    assert found == wanted
    publisher.close()


def test_nothing_is_sent_by_a_publisher_that_froze_until_a_person_was_forgotten(
    topic: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen after it looked for erasures: the database ends its session and so its lock, and the erasure goes on."""
    commits = made_up(10, 5)
    wanted = oracle(commits)
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    for rows in commits:
        table = commit(tmp_path, rows)
    gone = [one.lsn for one in wanted[:5]]
    send = Transactions.send

    with psycopg.connect(database, autocommit=True) as connection:

        def frozen(*arguments: Any) -> None:
            monkeypatch.setattr(Transactions, "send", send)
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE '%billing publisher'"
            )
            note_erasure(connection)
            table.update({"value": "NULL"}, predicate=f"lsn IN ({', '.join(map(str, gone))})")
            send(*arguments)

        monkeypatch.setattr(Transactions, "send", frozen)
        with pytest.raises(psycopg.OperationalError):
            publisher.publish()
        assert committed(topic, ORDERED_EVENTS) == []
    publish_all(publisher)
    found, repeats = ordered(committed(topic, ORDERED_EVENTS))
    assert repeats == 0
    assert found == [one for one in wanted if one.lsn not in gone]
    publisher.close()


def test_a_record_that_the_topic_does_not_take_is_reported_and_published_once_the_topic_takes_it(
    topic: str, database: str, tmp_path: Path
) -> None:
    commits = made_up(10, 6)
    wanted = oracle(commits)
    # More than the topic takes, and much less once it is compressed; and as much, whatever is done with it.
    values = {wanted[3].lsn: b"0" * (17 << 20), wanted[5].lsn: random.Random(1).randbytes(100_000)}
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    limit_records(topic, 90_000)
    for rows in commits:
        commit(tmp_path, rows, values=values)
    with pytest.raises(KafkaException, match=f"{ORDERED_EVENTS} refuses .*max.message.bytes"):
        publish_all(publisher)
    assert max(messages_of(topic)) < wanted[5].sequence, "what follows waits for it"
    limit_records(topic, 200_000)
    publish_all(publisher)
    assert sorted({*messages_of(topic)}) == [one.sequence for one in wanted]
    publisher.close()


def test_a_topic_that_takes_each_record_takes_them_all_however_many_are_sent_at_once(
    topic: str, database: str, tmp_path: Path
) -> None:
    """A broker's limit is of a batch, and random bytes are as many when they are compressed."""
    commits = made_up(10, 6)
    wanted, chance = oracle(commits), random.Random(1)
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    limit_records(topic, 200_000)
    for rows in commits:
        commit(tmp_path, rows, values={row.lsn: chance.randbytes(60_000) for row in rows})
    publish_all(publisher)
    assert sorted(messages_of(topic)) == [one.sequence for one in wanted]
    publisher.close()


def messages_of(bootstrap: str) -> list[int]:
    """The sequence numbers on the topic."""
    return [int(headers_of(message)["weir-sequence"]) for message in committed(bootstrap, ORDERED_EVENTS)]


def limit_records(bootstrap: str, max_bytes: int) -> None:
    """Change the topic's `max.message.bytes`."""
    entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, ORDERED_EVENTS, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()


def test_a_journal_that_is_another_one_is_refused(topic: str, database: str, tmp_path: Path) -> None:
    commits = made_up(10, 6)
    publisher = publisher_of(database, topic, tmp_path / "a")
    publish_all(publisher)
    for rows in commits:
        commit(tmp_path / "a", rows)
        commit(tmp_path / "b", rows)
    publish_all(publisher)
    other = publisher_of(database, topic, tmp_path / "b")
    with pytest.raises(RuntimeError, match="recreated, or belongs to another database"):
        publish_all(other)
    for each in (publisher, other):
        each.close()


def test_rows_that_were_removed_before_they_were_published_are_refused_and_not_left_out(
    topic: str, database: str, tmp_path: Path
) -> None:
    commits = made_up(20, 8)
    publisher = publisher_of(database, topic, tmp_path)
    publish_all(publisher)
    for rows in commits[:10]:
        commit(tmp_path, rows)
    publish_all(publisher)
    before = committed(topic, ORDERED_EVENTS)
    for rows in commits[10:]:
        table = commit(tmp_path, rows)
    gone = [row.lsn for row in commits[12]]
    removed = CommitProperties(app_transactions=[Transaction(REMOVED, len(gone))])
    table.delete(f"lsn >= {gone[0]} AND lsn <= {gone[-1]}", commit_properties=removed)
    with pytest.raises(Refused, match=f"removed {len(gone)} rows"):
        publish_all(publisher)
    assert len(committed(topic, ORDERED_EVENTS)) == len(before)
    publisher.close()
