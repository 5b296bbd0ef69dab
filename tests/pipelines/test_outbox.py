"""The outbox: whatever is read, sent, taken away and coalesced, whoever follows ends with the tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.job_states import Unpublished, read_unpublished
from jobs.billing.config import BillingConfig
from jobs.billing.gauges import totals
from jobs.billing.messages import correction_message, window_message
from jobs.billing.outbox import Outbox, Step, announce
from jobs.runtime.postgres import migrations
from metering.vocabulary import Job, Outcome, Published
from metering.windows import MINUTE
from monitoring import metrics
from tests.conftest import fresh_database
from tests.database_rows import write
from tests.following import Follower, truth
from tests.pipelines.billing import CHEAP, CONFIG, NOON, bill, usage_row
from tests.pipelines.folding import rows_of
from tests.pipelines.test_holding import CORRECTS_THEN, DEADLINE, RECEIVED, straggler

LATE = timedelta(seconds=CONFIG.grace_seconds) + MINUTE
ABANDONED = Outcome.ABANDONED
"""What leaves no meter out: a row is one window."""
SECOND = timedelta(seconds=1)
EMPTIED = ("usage_windows", "usage_days", "stragglers", "corrections", "unsent_windows")
MESSAGES = {Published.WINDOWS: window_message, Published.CORRECTIONS: correction_message}
Row = dict[str, Any]


def batch(first_lsn: int, seed: int) -> list[Row]:
    """Some rows of usage in few windows, some of them after grace."""
    chance = random.Random(seed)
    return [
        usage_row(
            first_lsn + i,
            NOON + chance.randint(0, 2) * MINUTE,
            chance.choice([timedelta(seconds=1), LATE]),
            price=chance.choice([None, CHEAP]),
            account=chance.choice(["acme", "bolt"]),
            model=chance.choice([None, "sonnet"]),
        )
        for i in range(chance.randint(1, 4))
    ]


def announced(connection: psycopg.Connection[Any], *topics: Published) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        announce(cursor, topics)


@dataclass
class Publisher:
    """One of two, and what it has in hand: read and not sent yet, or sent and not taken away yet."""

    outbox: Outbox = field(default_factory=lambda: Outbox(step_rows=2, loose_rows=0))
    read: dict[Published, Step] = field(default_factory=dict)
    sent: dict[Published, Step] = field(default_factory=dict)


class Told:
    """A database that billing folds into, two publishers of it who know nothing of each other, and one who follows."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.publishers = (Publisher(), Publisher())
        self.follower = Follower()
        self._next_lsn = 1

    def fold(self, seed: int) -> None:
        rows = batch(self._next_lsn, seed)
        bill(self.connection, rows)
        self._next_lsn += len(rows)

    def act(self, publisher: Publisher, topic: Published, action: str) -> None:
        match action:
            case "read":
                step = publisher.outbox.next(self.connection, topic)
                if step is not None:
                    publisher.read[topic] = step
            case "send" if topic in publisher.read:
                publisher.sent[topic] = step = publisher.read.pop(topic)
                for row in step.rows:
                    self.follower.take(topic, MESSAGES[topic](row)[1])
            case "take away" if topic in publisher.sent:
                publisher.outbox.sent(self.connection, topic, publisher.sent.pop(topic).up_to)
            case "publish":
                for each in ("read", "send", "take away"):
                    self.act(publisher, topic, each)
            case "coalesce":
                publisher.outbox.coalesce(self.connection)
            case "crash":
                publisher.read.clear()
                publisher.sent.clear()

    def drain(self) -> None:
        publisher = Publisher()
        for topic in Published:
            while publisher.outbox.next(self.connection, topic) is not None:
                self.act(publisher, topic, "publish")


acts = st.tuples(
    st.integers(0, 1),
    st.sampled_from(Published),
    st.sampled_from(["publish", "publish", "read", "send", "take away", "coalesce", "crash"]),
)
folds = st.integers(0, 10**6)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """As a publisher's: each statement is a transaction."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def emptied(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A database for many examples, each of which empties it."""
    quick = "-c synchronous_commit=off"
    with fresh_database(postgres_url) as url, psycopg.connect(url, autocommit=True, options=quick) as connection:
        yield connection


@settings(max_examples=80)
@given(steps=st.lists(st.one_of(folds, acts, acts, acts), max_size=40))
def test_a_subscriber_ends_with_the_tables_when_two_publishers_compete(
    emptied: psycopg.Connection[Any], steps: list[int | tuple[int, Published, str]]
) -> None:
    """One may be a zombie: it sends what it read long ago, and takes away what it sent, at any later time."""
    for table in (*EMPTIED, "publications"):
        emptied.execute(f"DELETE FROM {table}")
    announced(emptied, *Published)
    told = Told(emptied)
    for step in steps:
        if isinstance(step, int):
            told.fold(step)
        else:
            who, topic, action = step
            told.act(told.publishers[who], topic, action)
    told.drain()
    for topic in Published:
        assert told.follower.held[topic] == truth(emptied, topic)
    assert len(set(told.follower.done)) == len(told.follower.done)
    assert rows_of(emptied, "SELECT * FROM unsent_windows") == []


def test_a_window_that_changes_often_is_sent_once_as_it_is_then(connection: psycopg.Connection[Any]) -> None:
    announced(connection, *Published)
    for lsn in range(1, 6):
        bill(connection, [usage_row(lsn, outcome=ABANDONED)])
    step = Outbox().next(connection, Published.WINDOWS)
    assert step is not None
    assert [(row["quantity"], row["version"]) for row in step.rows] == [("5", 6)]


def test_of_a_minute_only_the_windows_that_changed_are_sent_again(connection: psycopg.Connection[Any]) -> None:
    announced(connection, *Published)
    outbox = Outbox()
    bill(connection, [usage_row(n, model=model, outcome=ABANDONED) for n, model in ((1, "opus"), (2, "sonnet"))])
    first = outbox.next(connection, Published.WINDOWS)
    assert first is not None
    outbox.sent(connection, Published.WINDOWS, first.up_to)
    bill(connection, [usage_row(3, model="opus", outcome=ABANDONED)])
    second = outbox.next(connection, Published.WINDOWS)
    assert second is not None
    assert [len(first.rows), len(second.rows)] == [2, 1]
    assert second.rows[0]["model"] == "opus"


def lost(connection: psycopg.Connection[Any]) -> None:
    """Nothing is left but what was published, which begins anew."""
    for table in (*EMPTIED, "publications"):
        connection.execute(f"DELETE FROM {table}")
    announced(connection, Published.WINDOWS)


@pytest.mark.parametrize("floor", [None, 10_000], ids=["as it grew", "raised when the table was made again"])
def test_a_version_does_not_depend_on_how_often_time_passed_nor_on_how_usage_was_cut(
    connection: psycopg.Connection[Any], floor: int | None
) -> None:
    waiting = [straggler(n, received_at=RECEIVED + n * SECOND) for n in (1, 2, 3)]
    on_time, over = usage_row(5, outcome=ABANDONED), straggler(6)
    ticks: list[tuple[list[Row], datetime | None]] = [([], DEADLINE + n * SECOND) for n in (1, 2, 3)]
    end = DEADLINE + 3 * SECOND
    found = []
    for batches in (
        [*ticks, ([on_time], end), ([over], end)],
        [([on_time], None), *ticks, ([over], end)],
        [([], end), ([on_time, over], end)],
        [([on_time, over], end)],
    ):
        lost(connection)
        bill(connection, [*waiting, usage_row(4, outcome=ABANDONED)], CORRECTS_THEN)
        if floor is not None:
            connection.execute("UPDATE usage_windows SET version = %s", [floor])
        position = 5
        for rows, frontier in batches:
            position = max([position, *(row["lsn"] + 1 for row in rows)])
            bill(connection, rows, CORRECTS_THEN, frontier, position)
        found.append(rows_of(connection, "SELECT quantity, version FROM usage_windows"))
    assert found == [[{"quantity": 6, "version": (floor or 5) + 6}]] * 4


@pytest.mark.parametrize("seed", range(6))
def test_a_subscriber_ends_with_windows_that_were_lost_and_rebuilt_from_the_same_usage(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    """Deadlines had passed one by one; when the windows are made again they all have."""
    chance = random.Random(seed)
    rows: list[Row] = [
        straggler(lsn, received_at=RECEIVED + lsn * SECOND)
        if chance.random() < 0.6
        else usage_row(lsn, outcome=ABANDONED)
        for lsn in range(1, 9)
    ]
    end = DEADLINE + 8 * SECOND
    lost(connection)
    live = Told(connection)
    for row in rows[:6]:
        bill(connection, [row], CORRECTS_THEN)
        live.drain()
    for n in range(1, 7):
        bill(connection, [], CORRECTS_THEN, DEADLINE + n * SECOND, 7)
        live.drain()
    lost(connection)
    again, cut = Told(connection), chance.randint(0, 5)
    again.follower = live.follower
    bill(connection, rows[:cut], CORRECTS_THEN)
    bill(connection, rows[cut:6], CORRECTS_THEN, DEADLINE + 6 * SECOND)
    for row in rows[6:]:
        bill(connection, [row], CORRECTS_THEN, end)
        again.drain()
        said, wanted = again.follower.held[Published.WINDOWS], truth(connection, Published.WINDOWS)
        assert said == wanted


def test_a_version_never_goes_back_even_where_the_position_does(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [usage_row(100, outcome=ABANDONED)])
    bill(connection, [usage_row(1, outcome=ABANDONED)])
    assert rows_of(connection, "SELECT version FROM usage_windows") == [{"version": 102}]


def test_unsent_windows_take_bounded_room_and_keep_their_age(
    connection: psycopg.Connection[Any],
) -> None:
    announced(connection, *Published)
    outbox = Outbox(loose_rows=10)
    bill(connection, [usage_row(1)])
    (oldest,) = rows_of(connection, "SELECT changed_at, version FROM unsent_windows")
    most = 0
    for lsn in range(2, 60):
        bill(connection, [usage_row(lsn, NOON + lsn % 3 * MINUTE)])
        outbox.coalesce(connection)
        most = max(most, len(rows_of(connection, "SELECT FROM unsent_windows")))
    assert most <= 10 + 3
    Outbox(loose_rows=0).coalesce(connection)
    kept = rows_of(connection, "SELECT changed_at, version FROM unsent_windows ORDER BY version")
    assert len(kept) == 3
    assert kept[0] == oldest


def test_a_newly_published_topic_starts_with_all_rows_and_a_removed_one_leaves_none(
    connection: psycopg.Connection[Any],
) -> None:
    off = BillingConfig(publish=())
    announced(connection)
    bill(connection, [*batch(1, 1), usage_row(9, delay=LATE)], off)
    assert rows_of(connection, "SELECT * FROM unsent_windows") == []
    for _ in range(2):
        announced(connection, *Published)
        announced(connection, *Published)
        told = Told(connection)
        told.drain()
        for topic in Published:
            assert told.follower.held[topic] == truth(connection, topic) != {}
        bill(connection, [usage_row(10)])
        announced(connection)
        assert rows_of(connection, "SELECT * FROM unsent_windows") == []
        assert rows_of(connection, "SELECT * FROM publications") == []


def shown(connection: psycopg.Connection[Any]) -> dict[tuple[str, str], float]:
    """Both gauges of the outbox, by name and topic."""
    with connection.cursor() as cursor:
        samples = [sample for each in totals("billing") for sample in each.read(cursor)]
    names = (metrics.UNSENT.name, metrics.UNSENT_SECONDS.name)
    return {(metric.name, labels[0]): value for metric, labels, value in samples if metric.name in names}


def test_gauges_and_status_show_how_much_is_unsent_and_for_how_long(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    changes, seconds = metrics.UNSENT.name, metrics.UNSENT_SECONDS.name
    started_at = datetime.now(UTC)

    def is_for(found: float, seconds: int) -> bool:
        """Or for as much longer as this test has run."""
        return seconds - 0.1 <= found <= seconds + (datetime.now(UTC) - started_at).total_seconds() + 0.1

    assert set(shown(connection).values()) == {0.0}
    announced(connection, *Published)
    bill(connection, [usage_row(1, delay=LATE), usage_row(2, account="bolt")])
    connection.execute("UPDATE unsent_windows SET changed_at = now() - interval '100 seconds'")
    connection.execute("UPDATE corrections SET corrected_at = now() - interval '200 seconds'")
    found = shown(connection)
    assert found[changes, "windows"] == 2
    assert found[changes, "corrections"] == 1
    assert is_for(found[seconds, "windows"], 100)
    assert is_for(found[seconds, "corrections"], 200)
    told = read_unpublished(database)[Job.BILLING]
    assert told.changes == 3
    assert told.since is not None
    assert is_for((datetime.now(UTC) - told.since).total_seconds(), 200)
    Told(connection).drain()
    assert set(shown(connection).values()) == {0.0}
    assert read_unpublished(database)[Job.BILLING] == Unpublished(0, None)


def test_earlier_corrections_get_their_numbers_in_the_order_of_usage(database: str) -> None:
    migration = import_module(f"{migrations.__name__}.versions.0025_outbox")
    made = {"window_start": NOON, "account": "acme", "cause": "stream", "old_quantity": 0, "new_quantity": 1}
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE corrections DROP COLUMN number")
        connection.execute("ALTER TABLE corrections ADD COLUMN number bigint")
        connection.commit()
        for lsn, meter in ((9, "requests"), (2, "requests"), (2, "input_tokens"), (5, "requests")):
            write(database, "corrections", {**made, "usage_lsn": lsn, "usage_lsns": [lsn], "meter": meter})
        connection.execute(migration.NUMBER)
        connection.commit()
        write(database, "corrections", {**made, "usage_lsn": 1, "usage_lsns": [1], "meter": "requests"})
        found = rows_of(connection, "SELECT number, usage_lsn, meter FROM corrections ORDER BY number")
    assert [tuple(row.values()) for row in found] == [
        (1, 2, "input_tokens"),
        (2, 2, "requests"),
        (3, 5, "requests"),
        (4, 9, "requests"),
        (5, 1, "requests"),
    ]
