"""Compaction changes no row, no position and no fence; a job writes on, and a stream passes over it."""

from __future__ import annotations

import os
import time
from datetime import date, timedelta
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.table import FRONTIER, LSN
from jobs.streams import Table
from tests.streaming.journals import START, Journal, heartbeat

DAY = START.date()
TOMORROW = DAY + timedelta(days=1)
WEEK = timedelta(days=7)


def journal_of(folder: Path, commits: int) -> Journal:
    journal = Journal(folder)
    for number in range(commits):
        journal.commit([heartbeat(number), heartbeat(number + 0.5)])
    return journal


def table(journal: Journal) -> DeltaTable:
    return DeltaTable(f"{journal.tables}/{Table.JOURNAL}")


def lsns(journal: Journal) -> list[int]:
    return sorted(table(journal).to_pyarrow_table()["lsn"].to_pylist())


def test_the_files_of_an_ended_day_become_one_and_the_rows_stay(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 6)
    before = table(journal).to_pyarrow_table().sort_by("lsn")
    done = compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=WEEK)
    assert done is not None
    assert (done.files_before, done.files_after, done.files_deleted) == (6, 1, 0)
    assert table(journal).to_pyarrow_table().sort_by("lsn").equals(before)


def test_a_day_that_is_not_over_is_left_alone(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 3)
    done = compact(journal.tables, Table.JOURNAL, before=DAY, keep=WEEK)
    assert done is not None
    assert done.files_after == 3


def test_positions_survive_and_the_job_writes_on(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 4)
    positions = [table(journal).transaction_version(name) for name in (LSN, FRONTIER, "ingestion.epoch")]
    compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=WEEK)
    assert [table(journal).transaction_version(name) for name in (LSN, FRONTIER, "ingestion.epoch")] == positions
    journal.commit([heartbeat(100)])
    assert lsns(journal) == list(range(1, 10))


def test_replaced_files_are_deleted_only_after_the_time_they_are_kept(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 4)
    files = set((tmp_path / Table.JOURNAL).rglob("*.parquet"))
    compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=WEEK)
    assert files <= set((tmp_path / Table.JOURNAL).rglob("*.parquet"))
    done = compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=timedelta(0))
    assert done is not None
    assert done.files_deleted == 4
    assert lsns(journal) == list(range(1, 9))


def test_replaced_files_are_deleted_and_files_being_written_are_kept(
    tmp_path: Path,
) -> None:
    """A log forgets after a week what was replaced, and a driver's checkpoint comes before the next compaction."""
    journal = journal_of(tmp_path, 4)
    compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=WEEK)
    table(journal).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 days"})
    table(journal).create_checkpoint()
    day = tmp_path / Table.JOURNAL / f"log_date={DAY}"
    for file in day.glob("*.parquet"):
        os.utime(file, times=(time.time() - 8 * 86_400,) * 2)
    (day / "of-a-commit-to-come.parquet").touch()
    done = compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=WEEK)
    assert done is not None
    assert done.files_deleted == 4
    assert len(list(day.glob("*.parquet"))) == 2
    assert lsns(journal) == list(range(1, 9))


def test_a_stream_behind_the_compaction_reads_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "tables", 4)
    seen: list[int] = []

    def on_batch(batch: DataFrame, _: int) -> None:
        seen.extend(row["lsn"] for row in batch.select("lsn").collect())

    def stream_what_is_there() -> None:
        frames = spark.readStream.format("delta").option("startingVersion", 0).option("skipChangeCommits", "true")
        query = (
            frames.load(f"{journal.tables}/{Table.JOURNAL}")
            .writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    stream_what_is_there()
    journal.commit([heartbeat(50)])
    compact(journal.tables, Table.JOURNAL, before=TOMORROW, keep=WEEK)
    journal.commit([heartbeat(60)])
    stream_what_is_there()
    assert sorted(seen) == list(range(1, 11))


def test_there_is_nothing_to_do_where_there_is_no_table(tmp_path: Path) -> None:
    assert compact(str(tmp_path), Table.JOURNAL, before=date(2026, 1, 1), keep=WEEK) is None
