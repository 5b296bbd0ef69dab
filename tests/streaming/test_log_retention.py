"""A table's log is kept for hours and cleaned beside the commits; a reader that it no longer reaches begins anew."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.log_cleanup import LogCleanup, clean_log
from jobs.runtime.delta.source import TableSource
from jobs.runtime.delta.table import LOG_SETTINGS, LSN, DeltaWriter
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB
from jobs.streams import JOURNAL, Table
from metering.vocabulary import EventType
from tests.streaming.drivers import running_driver
from tests.streaming.journals import START, Journal, environment, event, heartbeat

HOURS = timedelta(hours=4)
LOG = f"{Table.JOURNAL}/_delta_log"


def journal_of(tables: Path, commits: int) -> Journal:
    journal = Journal(tables)
    for number in range(commits):
        journal.commit([event(EventType.REQUEST, f"r{number}", number, user_id=f"u{number}")])
    return journal


def commits(tables: Path) -> int:
    return len(list((tables / LOG).glob("*.json")))


def expire(tables: Path) -> None:
    """All but the newest commit was committed hours ago, and a checkpoint holds it."""
    DeltaTable(f"{tables}/{Table.JOURNAL}").create_checkpoint()
    then = time.time() - HOURS.total_seconds()
    newest = max((tables / LOG).glob("*.json"))
    for file in {*(tables / LOG).iterdir()} - {newest}:
        os.utime(file, (then, then))


def sessions(database: str) -> list[tuple[int, int]]:
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT count(*), sum(events)::bigint FROM sessions").fetchall()


def test_a_commit_leaves_expired_files_to_the_cleanup_which_leaves_the_table_as_it_is(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 105)
    expire(tmp_path)
    journal.commit([heartbeat(200)])
    assert commits(tmp_path) > 105
    before = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    clean_log(str(tmp_path), Table.JOURNAL)
    assert commits(tmp_path) < 5
    after = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    assert (after.version(), after.transaction_version(LSN)) == (before.version(), 107)
    assert after.to_pyarrow_table().num_rows == 106
    journal.commit([heartbeat(201)])
    assert DeltaWriter(str(tmp_path), Table.JOURNAL, "ingestion", 2).next_lsn == 108


def test_only_expired_commits_before_a_checkpoint_are_cleaned(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 3)
    clean_log(str(tmp_path), Table.JOURNAL)
    assert commits(tmp_path) == 5
    expire(tmp_path)
    journal.commit([heartbeat(9)])
    clean_log(str(tmp_path), Table.JOURNAL)
    # The checkpoint's own commit and the one after it.
    assert commits(tmp_path) == 2


def test_a_table_of_an_older_version_gets_the_retention_at_its_driver_s_start_once(tmp_path: Path) -> None:
    old = {"delta.logRetentionDuration": "interval 30 days", "delta.dataSkippingStatsColumns": "lsn"}
    DeltaTable.create(f"{tmp_path}/{Table.JOURNAL}", JOURNAL, partition_by=["log_date"], configuration=old)
    changed = DeltaWriter(str(tmp_path), Table.JOURNAL, "ingestion", 1).table
    configuration = changed.metadata().configuration
    assert {name: configuration[name] for name in LOG_SETTINGS} == LOG_SETTINGS
    again = DeltaWriter(str(tmp_path), Table.JOURNAL, "ingestion", 2).table
    assert again.version() == changed.version() + 1


def test_the_cleanup_goes_on_in_its_thread_and_outlives_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir(parents=True)
    (tmp_path / LOG / f"{0:020d}.json").write_text("no log")
    cleanup = LogCleanup(str(tmp_path), Table.JOURNAL, every_seconds=0.05)
    (tmp_path / LOG / f"{0:020d}.json").unlink()
    journal_of(tmp_path, 3)
    expire(tmp_path)
    limit = time.monotonic() + 120
    while commits(tmp_path) > 1 and time.monotonic() < limit:
        time.sleep(0.02)
    cleanup.close()
    assert commits(tmp_path) == 1


def test_compaction_cuts_the_log_too(tmp_path: Path) -> None:
    journal_of(tmp_path, 4)
    expire(tmp_path)
    compact(str(tmp_path), Table.JOURNAL, before=START.date(), keep=timedelta(days=7))
    assert commits(tmp_path) == 1


@pytest.mark.long
def test_a_backlog_ends_with_a_version_whose_later_changes_the_log_still_has(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path, 6)
    where, config = environment(database, tmp_path), SessionizationConfig(max_records_per_batch=2)
    sink = PostgresSink(
        JOB, Context(config, where, spark, Ownership.take(JOB.name, database, {}), MachineClock(), Denials())
    )
    source = TableSource(JOB, config, where, sink)
    assert source.exists()
    for number, batch in enumerate(source.backlog(spark)):
        sink.process(batch)
        if number < 3:
            journal.commit([heartbeat(100 + number)])
    assert sink.position() == journal.next_lsn
    assert source._version == DeltaTable(f"{tmp_path}/{Table.JOURNAL}").version()


@pytest.mark.long
def test_a_stream_whose_log_was_cleaned_restarts_in_the_same_process_and_counts_every_row_once(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path, 3)

    def fall_behind_the_log() -> None:
        for number in range(3, 6):
            journal.commit([event(EventType.REQUEST, f"r{number}", number, user_id=f"u{number}")])
        expire(tmp_path)
        clean_log(str(tmp_path), Table.JOURNAL)

    with running_driver(spark, database, tmp_path, fall_behind_the_log) as wait_for:
        wait_for(7)
        journal.commit([event(EventType.REQUEST, "last", 9, user_id="last")])
        wait_for(8)
    assert sessions(database) == [(7, 7)]
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT epoch FROM jobs").fetchall() == [(1,)]


def test_a_frontier_advances_after_the_log_was_cleaned_behind_an_idle_reader(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    journal.commit([heartbeat(1)])
    where, config = environment(database, tmp_path), SessionizationConfig()
    sink = PostgresSink(
        JOB, Context(config, where, spark, Ownership.take(JOB.name, database, {}), MachineClock(), Denials())
    )

    def read_on(first: int) -> None:
        sink.process(journal.read(spark, JOB.columns(config), first))
        for _ in range(2):  # The first look finds out that nothing more is there.
            sink.advance()
        assert sink.position() == journal.next_lsn

    read_on(1)
    for seconds in (range(2, 6), range(6, 8)):
        first = journal.next_lsn
        for second in seconds:
            journal.commit([heartbeat(second)])
        if first == 2:
            expire(tmp_path)
            clean_log(str(tmp_path), Table.JOURNAL)
        read_on(first)
        assert sink.frontier() == journal.frontier
