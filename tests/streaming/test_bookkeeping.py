"""What is kept beside money follows a real journal: any cut, any crash between and any restart leave the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import psycopg
import pytest

from jobs.ingestion.bookkeeping import BY_DEFAULT, COLUMNS, Bookkeeping
from jobs.ingestion.conditions import Conditions
from jobs.ingestion.limits import LIMITS, Limits
from jobs.runtime.delta.table import DeltaWriter
from jobs.runtime.job import Counts
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import Table
from metering.vocabulary import EventType
from monitoring import metrics
from tests.streaming.journals import Journal, at, event, heartbeat

SOURCES = """
    SELECT source, account, first_seen_at, last_seen_at, sequences::text, unsequenced FROM sources ORDER BY 1
"""


def numbered(second: float, source: str, number: int, **values: Any) -> dict[str, Any]:
    return event(EventType.USAGE, f"{source}{number}", second, source=source, sequence=number, **values)


def rows_of(database: str, query: str = SOURCES) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(query).fetchall()


class Follower:
    """Ingestion's driver, as far as it keeps books: one per start."""

    def __init__(
        self, database: str, journal: Journal, limits: Limits = LIMITS, conditions: Conditions = BY_DEFAULT
    ) -> None:
        self._journal, self._limits, self._conditions = journal, limits, conditions
        self._ownership = Ownership.take("ingestion", database, {})
        self._starts = 0
        self.start()

    def start(self, conditions: Conditions | None = None) -> None:
        self._starts += 1
        self._conditions = conditions or self._conditions
        writer = DeltaWriter(self._journal.tables, Table.JOURNAL, "reader", self._starts)
        self._book = Bookkeeping(self._ownership, writer, self._journal.frontier, self._limits, self._conditions)

    def commit(self, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
        """Only the journal's part: what a crash before the bookkeeping leaves."""
        first = self._journal.next_lsn
        self._journal.commit(rows)
        return self._journal.rows(first).select(COLUMNS)

    def take(self, rows: Sequence[dict[str, Any]]) -> Counts:
        return self._book.take(self.commit(rows), self._journal.next_lsn, self._journal.frontier)


def log(seed: int) -> list[dict[str, Any]]:
    """Minutes of three sources: one whole, one with holes and late numbers, one that counts something else."""
    chance = Random(seed)
    rows = [numbered(second, "whole", second) for second in range(200)]
    rows += [numbered(n + chance.choice([0, 0, 3, 90]), "late", n) for n in range(200) if chance.random() > 0.05]
    rows += [numbered(second, "random", chance.randrange(10**18)) for second in range(200)]
    return sorted(rows, key=lambda row: row["received_at"])


@pytest.mark.parametrize("seed", [1, 2])
def test_differential_any_cut_and_any_crash_leave_the_rows_of_one_batch(
    database: str, tmp_path: Path, seed: int
) -> None:
    limits = Limits(ranges=30)
    chance, records = Random(seed), log(seed)
    end = [heartbeat(600)]
    whole = Follower(database, Journal(tmp_path / "whole"), limits)
    whole.take([*records, *end])
    expected = rows_of(database)
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE sources, bookkeeping")

    cut = Follower(database, Journal(tmp_path / "cut"), limits)
    while records:
        size = chance.choice([1, 7, 40, 150])
        batch, records = records[:size], records[size:]
        if chance.random() < 0.3:
            cut.commit(batch)
            cut.start()
        else:
            cut.take(batch)
    cut.take(end)

    assert rows_of(database) == expected
    assert [(row[0], row[-1]) for row in expected] == [("late", False), ("random", True), ("whole", False)]
    assert {row[0]: row[4] for row in expected}["whole"] == "{[0,200)}"


def test_sequence_numbers_appear_once_their_minute_has_ended(database: str, tmp_path: Path) -> None:
    follower = Follower(database, Journal(tmp_path))
    follower.take([numbered(1, "a", 1), numbered(2, "a", 3)])
    query = "SELECT sequences::text, counted_until FROM sources"
    assert rows_of(database, query) == [("{}", None)]
    follower.take([numbered(59, "a", 2), numbered(61, "a", 4), heartbeat(62)])
    assert rows_of(database, query) == [("{[1,4)}", at(60))]


def test_a_database_of_the_version_before_goes_on(database: str, tmp_path: Path) -> None:
    """It has the sources of the whole journal, their newest numbers among them, and no position."""
    journal = Journal(tmp_path)
    journal.commit([numbered(second, "a", second) for second in range(100)])
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO sources (source, first_seen_at, last_seen_at, sequences) VALUES ('a', %s, %s, '{[0,100)}')",
            [at(0), at(99)],
        )
    follower = Follower(database, journal)
    follower.take([numbered(second, "a", second) for second in range(100, 130)] + [heartbeat(200)])
    assert rows_of(database, "SELECT sequences::text, unsequenced FROM sources") == [("{[0,130)}", False)]


def test_events_of_unknown_types_are_counted_once_each_by_type(database: str, tmp_path: Path) -> None:
    def of_type(second: float, kind: str, **values: Any) -> dict[str, Any]:
        return numbered(second, f"gateway/{kind}", int(second)) | {"type": kind, **values}

    follower = Follower(database, Journal(tmp_path), Limits(types=3))
    follower.take([of_type(1, "a.v2"), of_type(2, "b.v2"), of_type(3, "a.v2"), heartbeat(4), numbered(4, "known", 1)])
    follower.commit([of_type(5, "a.v2"), of_type(6, "c.v2", disposition="rejected"), of_type(7, "d.v2")])
    follower.start()
    follower.start()
    counts = follower.take([of_type(8, "e.v2"), of_type(9, "f.v2"), of_type(10, "a.v2")])

    assert counts == {(metrics.UNKNOWN_TYPE,): 3, (metrics.UNLISTED,): 0}
    types = rows_of(database, "SELECT type, events, last_seen_at, last_source FROM unknown_types ORDER BY 1")
    assert types == [
        ("", 2, at(9), "gateway/f.v2"),
        ("a.v2", 4, at(10), "gateway/a.v2"),
        ("b.v2", 1, at(2), "gateway/b.v2"),
        ("d.v2", 1, at(7), "gateway/d.v2"),
    ]


def test_a_flood_of_sources_is_bounded_by_the_hour_and_counted(database: str, tmp_path: Path) -> None:
    follower = Follower(database, Journal(tmp_path), Limits(new_sources=3))
    follower.take([numbered(1, "known", 1)])
    flood = [numbered(2 + n, f"flood/{n}", 1) for n in range(10)]
    assert follower.take([*flood, numbered(20, "known", 2)])[metrics.UNLISTED,] == 8
    assert follower.take([numbered(30, "flood/9", 2), numbered(31, "flood/0", 2)])[metrics.UNLISTED,] == 1
    counts = follower.take([numbered(3600, "flood/9", 3), numbered(3601, "known", 3), heartbeat(7200)])
    assert counts[metrics.UNLISTED,] == 0
    assert [(row[0], row[4]) for row in rows_of(database)] == [
        ("flood/0", "{[1,3)}"),
        ("flood/1", "{[1,2)}"),
        ("flood/9", "{[1,4)}"),
        ("known", "{[1,4)}"),
    ]


def test_a_replaced_or_rolled_back_journal_is_followed_from_its_end(database: str, tmp_path: Path) -> None:
    Follower(database, Journal(tmp_path / "one")).take([numbered(n, "old", n) for n in range(20)])
    other = Journal(tmp_path / "two")
    other.commit([numbered(n, "unseen", n) for n in range(5)])
    follower = Follower(database, other)
    follower.take([numbered(6, "new", 1)])
    assert [row[0] for row in rows_of(database)] == ["new", "old"]


def test_too_many_numbers_waiting_for_the_frontier_restart_and_are_no_gaps(database: str, tmp_path: Path) -> None:
    follower = Follower(database, Journal(tmp_path), Limits(pending_runs=3))
    follower.take([numbered(1, "a", 1), heartbeat(61)])
    follower.take([numbered(62 + n, "a", 10 * n) for n in range(1, 6)])
    follower.take([numbered(70, "a", 100), heartbeat(200)])
    assert rows_of(database, "SELECT sequences::text, unsequenced FROM sources") == [("{[100,101)}", False)]
