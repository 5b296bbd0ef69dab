"""A few rows that a table got are read by the driver itself: the same comes of them, and Spark is asked for less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB as JOINS
from jobs.joins.sink import UsageSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.driver_rows import DriverRows, TableLimits
from jobs.runtime.delta.source import TableSource
from jobs.runtime.errors import Refused
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.streams import CatalogTopic, Table
from metering.vocabulary import Disposition, EventType
from tests.conftest import fresh_database
from tests.streaming.drivers import running_driver, triggers
from tests.streaming.journals import Journal, change, environment, event, heartbeat
from tests.waiting import wait_until

COMMITS: list[list[dict[str, Any]]] = [
    [change(CatalogTopic.ACCOUNTS, 0, account="a", name="A", plan="p", currency="EUR", timezone="UTC")],
    [heartbeat(1)],
    [event(EventType.REQUEST, "pair", 2), event(EventType.COMPLETION, "pair", 3), heartbeat(4)],
    [event(EventType.REQUEST, "none", 5, disposition=Disposition.DUPLICATE.value)],
    [event(EventType.REQUEST, "alone", 6, user_id=None), heartbeat(7)],
    [event(EventType.USAGE, "both", 8), heartbeat(9)],
    [heartbeat(5_000)],
]
Read = Callable[[Journal, int, int], Any]
"""A journal, its version and its next lsn before a commit → what the commit added."""


def sessionization(spark: SparkSession, database: str, tables: Path) -> PostgresSink:
    where, ownership = environment(database, tables), Ownership.take(SESSIONIZATION.name, database, {})
    return PostgresSink(
        SESSIONIZATION, Context(SessionizationConfig(), where, spark, ownership, MachineClock(), Denials())
    )


def joins(spark: SparkSession, database: str, tables: Path, **config: Any) -> UsageSink:
    where, ownership = environment(database, tables), Ownership.take(JOINS.name, database, {})
    return UsageSink(JOINS, Context(JoinsConfig(**config), where, spark, ownership, MachineClock(), Denials()))


def version(journal: Journal, table: Table = Table.JOURNAL) -> int:
    return int(DeltaTable(f"{journal.tables}/{table}").version())


def few(journal: Journal, columns: tuple[str, ...], before: int, most: TableLimits | None = None) -> pa.Table | None:
    """What the commits after the version `before` added."""
    rows = DriverRows(f"{journal.tables}/{Table.JOURNAL}", columns, most or TableLimits())
    return rows.added(range(before + 1, version(journal) + 1))


def left_by_sessionization(spark: SparkSession, database: str, tables: Path, read: Read) -> list[Any]:
    journal = Journal(tables)
    sink = sessionization(spark, database, tables)
    for rows in COMMITS:
        before, first = version(journal), journal.next_lsn
        journal.commit(rows)
        assert sink.process(read(journal, before, first)).records == len(rows)
    with psycopg.connect(database) as connection:
        sessions = connection.execute("SELECT account, user_id, session_start, session_end, events FROM sessions")
        position = connection.execute("SELECT next_position, row_before FROM positions")
        batches = connection.execute("SELECT first_position, next_position, records FROM batches ORDER BY 1")
        return [sorted(sessions.fetchall()), position.fetchall(), batches.fetchall()]


def left_by_joins(spark: SparkSession, database: str, tables: Path, read: Read) -> list[Any]:
    journal = Journal(tables)
    sink = joins(spark, database, tables)
    for rows in COMMITS:
        before, first = version(journal), journal.next_lsn
        journal.commit(rows)
        assert sink.process(read(journal, before, first)).records == len(rows)
    table = DeltaTable(f"{tables}/{Table.USAGE}")
    usage = pl.DataFrame(table.to_pyarrow_table()).drop("log_date", "logged_at", "frontier", "rules").sort("lsn")
    accounts = pl.DataFrame(DeltaTable(f"{tables}/{Table.ACCOUNTS}").to_pyarrow_table())
    said = [table.transaction_version(name) for name in ("journal", "journal.row", "frontier", "waiting")]
    return [usage.rows(), accounts.rows(), said]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize(("left", "job"), [(left_by_sessionization, SESSIONIZATION), (left_by_joins, JOINS)])
def test_differential_reading_by_driver_or_spark_gives_the_same_rows(
    spark: SparkSession, postgres_url: str, tmp_path: Path, left: Callable[..., list[Any]], job: Any
) -> None:
    with fresh_database(postgres_url) as one, fresh_database(postgres_url) as other:

        def read_by_driver(journal: Journal, before: int, _first: int) -> Any:
            return few(journal, job.columns(job.config()), before)

        def read_by_spark(journal: Journal, _before: int, first: int) -> Any:
            return journal.read(spark, job.columns(job.config()), first)

        found = left(spark, one, tmp_path / "one", read_by_driver)
        assert found == left(spark, other, tmp_path / "other", read_by_spark)
        assert found[0]


def test_a_batch_that_is_committed_in_parts_decides_the_same(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    found = []
    for most in (1_000, 2):
        tables = tmp_path / str(most)
        with fresh_database(postgres_url) as database:
            journal = Journal(tables)
            for rows in COMMITS:
                journal.commit(rows)
            sink = joins(spark, database, tables, max_records_per_batch=most)
            assert sink.process(journal.read(spark, JOINS.columns(JOINS.config()), 1)).records == journal.next_lsn - 1
            assert sink.position() == journal.next_lsn
            table = DeltaTable(f"{tables}/{Table.USAGE}")
            usage = pl.DataFrame(table.to_pyarrow_table()).drop("lsn", "log_date", "logged_at", "frontier", "rules")
            found.append((sorted(map(str, usage.rows())), table.version()))
    (at_once, commits), (in_parts, more) = found
    assert at_once == in_parts
    assert at_once
    assert more > commits


def jobs_of(spark: SparkSession) -> list[str]:
    """What every job was for that Spark has started."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [f"{jobs.apply(i).name()} {jobs.apply(i).description()}" for i in range(jobs.size())]


def running_query(spark: SparkSession) -> str | None:
    """The run of the query that has looked at the table."""
    return next((str(query.runId) for query in spark.streams.active if query.lastProgress), None)


def test_small_batches_run_no_spark_job(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableSource, "rest_after_seconds", 0.0)
    journal = Journal(tmp_path)
    journal.commit([event(EventType.REQUEST, "first", 1)])
    with running_driver(spark, database, tmp_path) as wait_for:
        wait_for(journal.next_lsn)
        wait_until(lambda: running_query(spark) is not None, "the query's first look")
        for second in range(2, 6):
            journal.commit([heartbeat(second), event(EventType.COMPLETION, "first", second)])
            before = jobs_of(spark)
            wait_for(journal.next_lsn)
            assert jobs_of(spark) == before
        journal.commit([event(EventType.REQUEST, "last", 9)])
        wait_for(journal.next_lsn)
        assert len(jobs_of(spark)) > len(before)
        assert running_query(spark) is not None


@pytest.mark.long
def test_an_idle_query_wakes_for_a_large_batch(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableSource, "rest_after_seconds", 15.0)
    monkeypatch.setattr(TableSource, "few", TableLimits(rows=3))
    built, journal = triggers(monkeypatch, TableSource), Journal(tmp_path)
    journal.commit([heartbeat(1)])
    with running_driver(spark, database, tmp_path) as wait_for:
        wait_until(lambda: built[-1:] == ["1800 seconds"], "a query that rests")
        queries = len(built)
        journal.commit([event(EventType.REQUEST, f"r{number}", number) for number in range(2, 12)])
        wait_for(journal.next_lsn)
        wait_until(lambda: "0 seconds" in built[queries:], "one that does not")
        kept = environment(database, tmp_path).checkpoints
        wait_until(lambda: len([*kept.glob("*/*/metadata")]) == 1, "only its checkpoint being there")
        for number in range(12, 22):
            journal.commit([event(EventType.REQUEST, f"r{number}", number)])
            wait_for(journal.next_lsn)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT sum(events) FROM sessions").fetchone() == (20,)


def test_a_reader_of_a_table_that_is_not_there_yet_waits_for_it(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    sink = sessionization(spark, database, tmp_path)
    table = TableSource(SESSIONIZATION, SessionizationConfig(), environment(database, tmp_path), sink)
    assert not table.exists()
    Journal(tmp_path).commit([heartbeat(1)])
    assert table.exists()


def test_rows_that_decide_nothing_cost_joins_no_job_of_spark(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    sink = joins(spark, database, tmp_path)
    before, jobs = version(journal), jobs_of(spark)
    journal.commit([event(EventType.REQUEST, "waits", 1), heartbeat(2)])
    sink.process(few(journal, JOINS.columns(JOINS.config()), before))
    assert sink.status()["waiting"] == 1
    assert jobs_of(spark) == jobs


def test_rows_that_are_missing_among_a_few_are_refused(spark: SparkSession, database: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    before = version(journal)
    journal.commit([heartbeat(second) for second in range(4)])
    found = few(journal, SESSIONIZATION.columns(SESSIONIZATION.config()), before)
    assert found is not None
    sink = sessionization(spark, database, tmp_path)
    for rows in (found.slice(1), pa.concat_tables([found.slice(0, 1), found.slice(2)])):
        with pytest.raises(Refused, match="would lose rows"):
            sink.process(rows)
    assert sink.process(found).records == 4
    assert sink.process(found).records == 0


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path)
    journal.commit([heartbeat(1)])
    return journal


def test_many_rows_or_bytes_or_commits_are_for_spark(journal: Journal) -> None:
    before = version(journal)
    for second in range(2, 5):
        journal.commit([heartbeat(second), heartbeat(second)])
    columns = SESSIONIZATION.columns(SESSIONIZATION.config())
    for most in (TableLimits(rows=2), TableLimits(file_bytes=2), TableLimits(commits=2)):
        assert few(journal, columns, before, most) is None, most
    found = few(journal, columns, before)
    assert found is not None
    assert found["lsn"].to_pylist() == list(range(2, 8))


def test_many_commits_are_read_oldest_first_as_far_as_a_batch_goes(journal: Journal) -> None:
    before = version(journal)
    for second in range(2, 6):
        journal.commit([heartbeat(second), heartbeat(second)])
    rows = DriverRows(f"{journal.tables}/{Table.JOURNAL}", ("lsn",), TableLimits(rows=5, commits=3))
    after, found = before, list[list[int]]()
    while after < version(journal):
        added = rows.first(range(after + 1, version(journal) + 1))
        assert added is not None
        assert added.rows is not None
        after, found = added.version, [*found, added.rows["lsn"].to_pylist()]
    assert found == [[2, 3, 4, 5], [6, 7, 8, 9]]
    journal.commit([heartbeat(9)] * 6)
    assert rows.first(range(after + 1, version(journal) + 1)) is None, "a commit of more"


def test_a_single_commit_may_have_more_rows_than_several_together(journal: Journal) -> None:
    before = version(journal)
    for seconds in ([2] * 6, [3], [4] * 7):
        journal.commit([heartbeat(second) for second in seconds])
    rows = DriverRows(f"{journal.tables}/{Table.JOURNAL}", ("lsn",), TableLimits(rows=3, rows_of_one=6))
    news = range(before + 1, version(journal) + 1)
    found = [rows.first(news[number:]) for number in range(3)]
    assert [added and (added.version, len(added.rows or ())) for added in found] == [(news[0], 6), (news[1], 1), None]


@pytest.mark.parametrize("at_once", [2, 7, 1_000])
def test_a_driver_takes_a_whole_backlog_of_commits_part_by_part_without_spark(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    journal = Journal(tmp_path)
    journal.commit([heartbeat(1)])
    monkeypatch.setattr(TableSource, "_most", lambda *_: TableLimits(rows=at_once, commits=5))
    sink = joins(spark, database, tmp_path)
    table = TableSource(JOINS, JoinsConfig(), environment(database, tmp_path), sink)
    assert table.exists()
    for batch in table.backlog(spark):
        sink.process(batch)
    table.stream(spark)
    assert table.trigger == "1800 seconds"
    for second in range(2, 14):
        journal.commit([event(EventType.USAGE, f"r{second}", second), heartbeat(second)])
        if second % 4 == 0:
            # Commits without a row: merged, and removed.
            DeltaTable(f"{journal.tables}/{Table.JOURNAL}").optimize.compact()
    jobs, looks = jobs_of(spark), 0
    while sink.position() < journal.next_lsn:
        looks += 1
        assert looks < 40, "a look that gives nothing"
        if (found := table.found()) is not None:
            sink.process(found)
    assert jobs_of(spark) == jobs
    usage = pl.DataFrame(DeltaTable(f"{tmp_path}/{Table.USAGE}").to_pyarrow_table())
    assert sorted(usage["request_id"]) == sorted(f"r{second}" for second in range(2, 14))
    assert not table.must_restart()


def test_sessions_take_the_commits_of_a_few_seconds_together_but_no_backlog_waits(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("jobs.runtime.delta.source.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(TableSource, "few", TableLimits(rows=3))
    journal = Journal(tmp_path)
    journal.commit([heartbeat(1)])
    sink = sessionization(spark, database, tmp_path)
    config = SessionizationConfig(min_batch_interval_seconds=4)
    table = TableSource(SESSIONIZATION, config, environment(database, tmp_path), sink)
    assert table.exists()
    for batch in table.backlog(spark):
        sink.process(batch)
    monkeypatch.setattr(table, "_is_idle", True)
    table.has_news()

    def taken() -> int:
        found = table.found()
        return 0 if found is None else sink.process(found).records

    journal.commit([heartbeat(2)])
    assert taken() == 1, "the first is followed at once"
    journal.commit([heartbeat(3)])
    now[0] += 3.9
    journal.commit([heartbeat(4)])
    assert taken() == 0
    now[0] += 0.2
    assert taken() == 2, "both in one batch"
    for second in range(5, 12):
        journal.commit([heartbeat(second)])
    now[0] += 4
    assert [taken(), taken(), taken()] == [3, 3, 1], "what is more than one batch waits for no pause"


def test_a_pause_depends_on_the_rows_of_its_batch_and_ends_when_half_of_what_the_driver_reads_waits(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, at = [1_000.0], [journal.next_lsn]
    monkeypatch.setattr("jobs.runtime.delta.source.time", SimpleNamespace(monotonic=lambda: now[0]))
    sink: Any = SimpleNamespace(rows_at_once=100, driver_rows=10, task_rows=0, position=lambda: at[0])
    job = replace(SESSIONIZATION, pause_seconds=lambda _config, rows: 15.0 if rows >= 3 else 4.0)
    table = TableSource(job, SessionizationConfig(), environment("", Path(journal.tables)), sink)
    assert table.exists()
    table._is_idle = True
    table.has_news()

    def taken(*, after_seconds: float, new: int) -> int:
        now[0] += after_seconds
        if new:
            journal.commit([heartbeat(2)] * new)
        found = table.found()
        rows = found.num_rows if isinstance(found, pa.Table) else 0
        at[0] += rows
        return rows

    assert taken(after_seconds=0, new=3) == 3, "the first after idleness is taken at once"
    assert taken(after_seconds=14.9, new=1) == 0
    assert taken(after_seconds=0.2, new=1) == 2
    assert taken(after_seconds=3.9, new=3) == 0
    assert taken(after_seconds=0.2, new=0) == 3
    assert taken(after_seconds=1, new=5) == 0, "nobody has looked yet"
    table.lag()
    assert taken(after_seconds=1, new=0) == 5


def test_a_minute_of_commits_is_one_batch_where_the_driver_reads_whole_batches(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next batch would follow at once, however long it is to wait (`busy_batch_interval_seconds`)."""
    first, now = journal.next_lsn, 1_000.0
    monkeypatch.setattr("jobs.runtime.delta.source.time", SimpleNamespace(monotonic=lambda: now))
    sink: Any = SimpleNamespace(rows_at_once=100, driver_rows=1_000, task_rows=0, position=lambda: first)
    table = TableSource(SESSIONIZATION, SessionizationConfig(), environment("", Path(journal.tables)), sink)
    assert table.exists()
    table._is_idle = True
    table.has_news()
    for _ in range(60):
        journal.commit([heartbeat(2)])
    found = table.found()
    assert isinstance(found, pa.Table)
    assert len(found) == 60
    assert table.found() is None, "it is time for a pause"


def test_commits_that_left_the_log_or_changed_the_table_are_read_by_spark(journal: Journal) -> None:
    before = version(journal)
    journal.commit([heartbeat(2)])
    columns = SESSIONIZATION.columns(SESSIONIZATION.config())
    assert few(journal, (*columns, "log_date"), before) is None
    assert few(journal, (*columns, "of a later version"), before) is None
    table = DeltaTable(f"{journal.tables}/{Table.JOURNAL}")
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 4 hours"})
    assert few(journal, columns, before) is None
    journal.commit([heartbeat(3)])
    after = version(journal)
    (Path(journal.tables) / Table.JOURNAL / "_delta_log" / f"{after:020d}.json").rename(Path(journal.tables) / "away")
    assert DriverRows(f"{journal.tables}/{Table.JOURNAL}", columns).added(range(after, after + 1)) is None


def test_small_batches_read_the_value_of_catalog_changes_only(journal: Journal) -> None:
    before = version(journal)
    said = change(CatalogTopic.ACCOUNTS, 2, account="a")
    journal.commit([event(EventType.REQUEST, f"r{n}", 2, value=b"0" * 100_000) for n in range(40)] + [said])
    found = few(journal, JOINS.columns(JOINS.config()), before)
    assert found is not None
    assert found["value"].to_pylist() == [None] * 40 + [said["value"]]
    assert few(journal, JOINS.columns(JOINS.config()), before, TableLimits(value_bytes=10)) is None


def test_what_was_merged_or_removed_is_no_new_row(journal: Journal) -> None:
    before = version(journal)
    journal.commit([heartbeat(2)])
    table = DeltaTable(f"{journal.tables}/{Table.JOURNAL}")
    table.optimize.compact()
    table.delete("lsn = 1")
    found = few(journal, SESSIONIZATION.columns(SESSIONIZATION.config()), before)
    assert found is not None
    assert found["lsn"].to_pylist() == [2]


def test_a_source_gives_all_new_rows_whatever_part_a_batch_had(
    spark: SparkSession, database: str, journal: Journal, tmp_path: Path
) -> None:
    sink = sessionization(spark, database, tmp_path)
    where = environment(database, tmp_path)
    table = TableSource(SESSIONIZATION, SessionizationConfig(), where, sink)
    batch = journal.read(spark, SESSIONIZATION.columns(SESSIONIZATION.config()))
    assert table.has_news()
    assert table.instead_of(batch) is batch, "before the first batch nobody knows at which version the position is"
    sink.process(batch)
    assert not table.has_news()
    for second in (2, 3):
        journal.commit([heartbeat(second)])
    assert table.has_news()
    found = table.instead_of(batch)
    assert isinstance(found, pa.Table)
    assert found["lsn"].to_pylist() == [2, 3]


def test_a_commit_seen_during_a_backlog_does_not_prevent_idling(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    journal.commit([heartbeat(1)])
    sink = joins(spark, database, tmp_path)
    table = TableSource(JOINS, JoinsConfig(), environment(database, tmp_path), sink)
    assert table.exists()
    for batch in table.backlog(spark):
        sink.process(batch)
        journal.commit([heartbeat(2)])
        # As whoever reports does.
        assert table.lag()[0] == 1
    table.stream(spark)
    found = table.found()
    assert isinstance(found, pa.Table)
    assert found["lsn"].to_pylist() == [2]
    assert not table.must_restart()
