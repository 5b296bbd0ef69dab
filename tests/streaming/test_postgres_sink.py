"""The Postgres sink protocol with real parts: a batch is folded once, in order, or refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of
from jobs.runtime.errors import Fenced, Refused
from jobs.runtime.job import Context, Counts, Fold, PostgresJob
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB
from jobs.streams import JOURNAL, Table
from metering.vocabulary import Disposition, EventType
from monitoring import metrics
from tests.streaming.journals import batch_of, environment

START = datetime(2026, 1, 1, tzinfo=UTC)


class Stage:
    """A journal that grows, and drivers of sessionization that fold it."""

    def __init__(self, spark: SparkSession, database: str, tables: Path) -> None:
        self.spark = spark
        self.database = database
        self.tables = str(tables)
        self.journal = DeltaWriter(self.tables, Table.JOURNAL, "ingestion", 1)

    def append(self, *minutes: int) -> None:
        """One accepted request of user u per given minute, and the frontier at the last one."""
        first = self.journal.next_lsn
        rows = [_request(first + i, START + timedelta(minutes=minute)) for i, minute in enumerate(minutes)]
        frontier = microseconds_of(START + timedelta(minutes=max(minutes)))
        self.journal.commit(pa.Table.from_pylist(rows, schema=JOURNAL), {LSN: first + len(rows), FRONTIER: frontier})

    def driver(self, job: PostgresJob[SessionizationConfig] = JOB) -> PostgresSink:
        ownership = Ownership.take(JOB.name, self.database, {})
        return PostgresSink(
            job,
            Context(
                SessionizationConfig(),
                environment(self.database, Path(self.tables)),
                self.spark,
                ownership,
                MachineClock(),
                Denials(),
            ),
        )

    def batch(self, first: int, end: int) -> DataFrame:
        return batch_of(self.spark, self.tables, JOB.columns(JOB.config()), first, end)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(query).fetchall()


def _request(lsn: int, at: datetime) -> dict[str, Any]:
    place = {"lsn": lsn, "log_date": at.date(), "topic": "events", "partition": 0, "offset": lsn}
    instants = {"received_at": at, "logged_at": at, "event_time": at}
    kind = {"disposition": Disposition.ACCEPTED, "type": EventType.REQUEST}
    return {**place, **instants, **kind, "account": "a", "user_id": "u"}


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Stage:
    return Stage(spark, database, tmp_path)


def test_a_batch_and_its_position_arrive_together(stage: Stage) -> None:
    stage.append(0, 10, 90)
    assert stage.driver().process(stage.batch(1, 4)).records == 3
    assert stage.rows("SELECT events FROM sessions ORDER BY session_start") == [(2,), (1,)]
    assert stage.rows("SELECT job, input, next_position FROM positions") == [("sessionization", "journal", 4)]
    assert stage.rows("SELECT first_position, next_position, epoch, records FROM batches") == [(1, 4, 1, 3)]


def test_a_repeated_batch_changes_nothing_and_an_overlapping_one_adds_its_new_rows(stage: Stage) -> None:
    stage.append(0, 10, 20)
    driver = stage.driver()
    driver.process(stage.batch(1, 3))
    assert driver.process(stage.batch(1, 3)).records == 0
    assert driver.process(stage.batch(1, 4)).records == 1
    assert stage.rows("SELECT sum(events) FROM sessions") == [(3,)]


def test_a_batch_that_would_leave_a_gap_is_refused(stage: Stage) -> None:
    stage.append(0, 10, 20)
    with pytest.raises(Refused, match="at lsn 1, but the batch holds 2 rows from 2 to 3"):
        stage.driver().process(stage.batch(2, 4))
    with pytest.raises(Refused, match="would lose rows"):
        stage.driver().process(stage.batch(1, 4).where("lsn <> 2"))
    assert stage.rows("SELECT count(*) FROM sessions") == [(0,)]


def test_a_replaced_driver_cannot_write_and_its_successor_continues(stage: Stage) -> None:
    stage.append(0, 10)
    old = stage.driver()
    new = stage.driver()
    with pytest.raises(Fenced, match="sessionization: epoch 1 is no longer the newest"):
        old.process(stage.batch(1, 3))
    new.process(stage.batch(1, 3))
    assert stage.rows("SELECT sum(events) FROM sessions") == [(2,)]


def test_a_driver_whose_position_was_moved_is_fenced(stage: Stage) -> None:
    stage.append(0, 10)
    driver = stage.driver()
    with psycopg.connect(stage.database) as other:
        other.execute("INSERT INTO positions (job, input, next_position) VALUES ('sessionization', 'journal', 3)")
    with pytest.raises(Fenced, match="is at 3 in the database, this driver left it at 1"):
        driver.process(stage.batch(1, 3))


def test_the_frontier_is_stored_once_all_rows_before_it_are_folded_and_moves_without_rows(stage: Stage) -> None:
    stage.append(0, 10)
    driver = stage.driver()
    driver.advance()
    driver.process(stage.batch(1, 2))
    assert driver.frontier() is None
    driver.process(stage.batch(2, 3))
    assert stage.rows("SELECT frontier FROM positions") == [(START + timedelta(minutes=10),)]
    later = microseconds_of(START + timedelta(minutes=50))
    stage.journal.commit(JOURNAL.empty_table(), {FRONTIER: later})
    driver.advance()
    driver.advance()
    assert stage.rows("SELECT frontier FROM positions") == [(START + timedelta(minutes=50),)]


def test_changes_by_time_alone_are_folded_with_the_frontier(stage: Stage) -> None:
    """Killed in between, it is due again: F has not moved."""
    passed: list[datetime | None] = []

    def fold(cursor: psycopg.Cursor[Any], config: SessionizationConfig, frontiers: Fold) -> Counts:
        count = cursor.execute("SELECT count(*) FROM staged").fetchone()
        if count == (0,):
            passed.append(frontiers.frontier)
            if len(passed) == 1:
                raise ConnectionError
            return {(metrics.SESSIONS, "begun"): 7}
        return JOB.fold(cursor, config, frontiers)

    due = START + timedelta(minutes=30)
    job = replace(JOB, fold=fold, is_due=lambda _, around: around.frontier is not None and around.frontier >= due)
    stage.append(0, 10)
    driver = stage.driver(job)
    driver.process(stage.batch(1, 3))
    driver.advance()
    stage.journal.commit(JOURNAL.empty_table(), {FRONTIER: microseconds_of(due)})
    driver.advance()
    with pytest.raises(ConnectionError):
        driver.advance()
    assert stage.rows("SELECT frontier FROM positions") == [(START + timedelta(minutes=10),)]
    driver.advance()
    assert stage.rows("SELECT frontier FROM positions") == [(due,)]
    assert passed == [due, due]
    stage.append(50)
    assert driver.process(stage.batch(3, 4)).counts[metrics.SESSIONS, "begun"] == 8


def test_a_failure_inside_the_fold_leaves_nothing_behind(stage: Stage) -> None:
    stage.append(0, 10)
    driver = stage.driver()
    with psycopg.connect(stage.database, autocommit=True) as other:
        other.execute("ALTER TABLE batches ADD CONSTRAINT nothing_fits CHECK (records < 0)")
    with pytest.raises(psycopg.errors.CheckViolation):
        driver.process(stage.batch(1, 3))
    assert stage.rows("SELECT count(*) FROM sessions") == [(0,)]
    assert stage.rows("SELECT count(*) FROM positions") == [(0,)]
