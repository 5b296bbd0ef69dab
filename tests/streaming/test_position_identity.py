"""No job goes on from a position in another table: real journals, real sinks, one Postgres that outlives them all."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB as JOINS
from jobs.joins.sink import UsageSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.source import TableSource
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Refused
from jobs.runtime.job import Context, TableSink
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB
from jobs.streams import CatalogTopic, Table
from metering.meters import REPORTED_COLUMNS
from metering.vocabulary import EventType
from tests.streaming.journals import Journal, change, environment, event

ACCOUNT = {"account": "a", "name": "A", "plan": "p", "currency": "EUR", "timezone": "UTC"}


def sessionize(spark: SparkSession, database: str, tables: Path, chunk: int = 200_000) -> PostgresSink:
    """A start of sessionization as a driver makes it, which folds what is there."""
    where, config = environment(database, tables), SessionizationConfig(max_records_per_batch=chunk)
    sink = PostgresSink(
        JOB, Context(config, where, spark, Ownership.take(JOB.name, database, {}), MachineClock(), Denials())
    )
    start(spark, TableSource(JOB, config, where, sink), sink)
    return sink


def joins(spark: SparkSession, database: str, tables: Path) -> UsageSink:
    where = environment(database, tables)
    return UsageSink(
        JOINS, Context(JoinsConfig(), where, spark, Ownership.take(JOINS.name, database, {}), MachineClock(), Denials())
    )


def join(spark: SparkSession, database: str, tables: Path) -> UsageSink:
    """A start of joins as a driver makes it, which folds what is there."""
    sink = joins(spark, database, tables)
    start(spark, TableSource(JOINS, JoinsConfig(), environment(database, tables), sink), sink)
    return sink


def start(spark: SparkSession, source: TableSource, sink: TableSink) -> None:
    assert source.exists()
    for batch in source.backlog(spark):
        sink.process(batch)


def has_folded(spark: SparkSession, journal: Journal, sink: TableSink, columns: Iterable[str]) -> None:
    """The past of a test: a sink that was verified as a start does, and has folded all without Spark's look at it."""
    upstream = Upstream(journal.tables, Table.JOURNAL)
    upstream.refresh()
    sink.verify(upstream)
    sink.process(journal.read(spark, columns, sink.position()))


def has_sessionized(spark: SparkSession, database: str, journal: Journal) -> None:
    where = environment(database, Path(journal.tables))
    context = Context(
        SessionizationConfig(), where, spark, Ownership.take(JOB.name, database, {}), MachineClock(), Denials()
    )
    has_folded(spark, journal, PostgresSink(JOB, context), JOB.columns(JOB.config()))


def has_joined(spark: SparkSession, database: str, journal: Journal) -> None:
    has_folded(spark, journal, joins(spark, database, Path(journal.tables)), JOINS.columns(JOINS.config()))


def requests(first: int, count: int) -> list[dict[str, Any]]:
    return [event(EventType.REQUEST, f"r{n}", n, user_id=f"u{n}") for n in range(first, first + count)]


def rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(query).fetchall()


def roll_back(tables: Path, table: Table, commits: int) -> None:
    for log in sorted((tables / table / "_delta_log").glob("*.json"))[-commits:]:
        log.unlink()


def test_a_new_journal_is_refused_by_the_database_of_another_also_when_it_has_grown_past_the_position(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "old")
    journal.commit(requests(0, 5))
    has_sessionized(spark, database, journal)
    Journal(tmp_path / "new").commit(requests(100, 8))
    with pytest.raises(Refused, match="sessionization has read journal up to lsn 5, but of another table"):
        sessionize(spark, database, tmp_path / "new")
    assert rows(database, "SELECT sum(events) FROM sessions") == [(5,)]
    assert sessionize(spark, database, tmp_path / "old").position() == 6


@pytest.mark.long
def test_a_start_finds_the_position_that_the_last_batch_stored(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    for first in (0, 3):
        journal.commit(requests(first, 3))
        assert sessionize(spark, database, tmp_path, chunk=2).position() == first + 4
    assert rows(database, "SELECT count(*) FROM positions WHERE input_table IS NULL OR row_before IS NULL") == [(0,)]


def test_a_position_of_the_release_before_adopts_its_journal_once(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "old")
    journal.commit(requests(0, 5))
    has_sessionized(spark, database, journal)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE positions SET input_table = NULL, row_before = NULL")
    assert sessionize(spark, database, tmp_path / "old").position() == 6
    Journal(tmp_path / "new").commit(requests(100, 8))
    with pytest.raises(Refused, match="of another table"):
        sessionize(spark, database, tmp_path / "new")


def test_joins_starts_before_ingestion_has_given_the_journal_a_new_column_and_waits_for_it(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    journal.commit(requests(0, 2))
    has_joined(spark, database, journal)
    older = journal.rows().drop(REPORTED_COLUMNS[-1])
    write_deltalake(
        f"{tmp_path}/{Table.JOURNAL}",
        older.to_arrow(),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by="log_date",
    )
    sink = joins(spark, database, tmp_path)
    assert sink.status()["waiting"] == 2
    source = TableSource(JOINS, JoinsConfig(), environment(database, tmp_path), sink)
    with capture_logs() as said:
        assert not source.exists()
        assert not source.exists()
    assert [line["columns"] for line in said] == [[REPORTED_COLUMNS[-1]]]
    Journal(tmp_path, epoch=2).commit(requests(2, 1))
    assert source.exists()


def test_joins_refuses_to_start_without_its_journal(spark: SparkSession, database: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.commit(requests(0, 2))
    has_joined(spark, database, journal)
    shutil.rmtree(tmp_path / Table.JOURNAL)
    with pytest.raises(Refused, match="joins has read journal up to lsn 2, but there is no table at"):
        joins(spark, database, tmp_path)


def test_a_job_refuses_to_start_without_its_journal(spark: SparkSession, database: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.commit(requests(0, 5))
    has_sessionized(spark, database, journal)
    shutil.rmtree(tmp_path / Table.JOURNAL)
    with pytest.raises(Refused, match="there is no table at"):
        sessionize(spark, database, tmp_path)


def test_rows_that_were_deleted_before_they_were_read_are_refused_and_not_waited_for(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    journal.commit(requests(0, 4))
    journal.commit(requests(4, 4))
    DeltaTable(f"{tmp_path}/{Table.JOURNAL}").delete("lsn <= 4")
    with pytest.raises(Refused, match=r"is at lsn 1, but .* has no row from there to 2, though its log lists them"):
        sessionize(spark, database, tmp_path, chunk=2)


def test_joins_refuses_a_journal_that_its_usage_was_not_made_of(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    journal.commit([change(CatalogTopic.ACCOUNTS, 0, **ACCOUNT)])
    journal.commit(requests(0, 3))
    has_joined(spark, database, journal)
    assert join(spark, database, tmp_path).position() == 5
    roll_back(tmp_path, Table.JOURNAL, 1)
    Journal(tmp_path, epoch=2).commit([{**row, "offset": 100 + n} for n, row in enumerate(requests(50, 9))])
    with pytest.raises(Refused, match=r"joins has read journal up to lsn 4, but .* another row there"):
        join(spark, database, tmp_path)


def test_usage_of_the_release_before_adopts_its_journal_and_goes_on(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    journal.commit([change(CatalogTopic.ACCOUNTS, 0, **ACCOUNT), *requests(0, 3)])
    # A sink that nobody verified stores positions as the release before did: numbers and no table.
    joins(spark, database, tmp_path).process(journal.read(spark, JOINS.columns(JOINS.config())))
    assert join(spark, database, tmp_path).position() == 5
    usage = DeltaTable(f"{tmp_path}/{Table.USAGE}")
    assert None not in [usage.transaction_version(f"journal.{part}") for part in ("table", "row")]
    shutil.rmtree(tmp_path / Table.JOURNAL)
    Journal(tmp_path).commit(requests(100, 9))
    with pytest.raises(Refused, match="of another table"):
        join(spark, database, tmp_path)


@pytest.mark.parametrize("fate", ["made anew", "rolled back"])
def test_joins_refuses_tables_of_versions_older_than_those_it_priced_with(
    spark: SparkSession, database: str, tmp_path: Path, fate: str
) -> None:
    journal = Journal(tmp_path)
    journal.commit([change(CatalogTopic.ACCOUNTS, 0, **ACCOUNT), *requests(0, 3)])
    has_joined(spark, database, journal)
    if fate == "made anew":
        shutil.rmtree(tmp_path / Table.ACCOUNTS)
    else:
        roll_back(tmp_path, Table.ACCOUNTS, 1)
    journal.commit(requests(3, 3))
    with pytest.raises(Refused, match=r"was priced with the versions in accounts up to lsn 4 .* restore the accounts"):
        join(spark, database, tmp_path)
