"""Retention removes whole days from the old end and nothing else; a job writes on, and a stream passes over it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from psycopg.types.json import Jsonb
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession

from cli.journal import summary_rows
from deployment.positions import Positions
from jobs.analytics.unread_minutes import UNREAD_SINCE
from jobs.audit.compare.conservation import consumed_ranges, count_rows
from jobs.audit.tables.retained import has_each_once, retained_rows
from jobs.journal.elements import FIELD
from jobs.retention.analytics import retain_analytics
from jobs.retention.days import Removed, Retention, oldest_open_day
from jobs.retention.rows import retain_rows
from jobs.retention.tables import retain_days
from jobs.runtime.delta.deciding_rows import files_of
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of
from jobs.runtime.kafka.topic import Topic
from jobs.streams import EVENTS_TOPIC, USAGE, Table
from metering.reports import Phase
from metering.vocabulary import Job
from tests.dashboard.watched import hits, match, pattern, watch
from tests.database_rows import progress, write
from tests.streaming.journals import Journal, heartbeat

TODAY = date(2026, 5, 20)
DAY = timedelta(days=1)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def noon(day: date) -> datetime:
    return datetime.combine(day, time(12), UTC)


def journal_until(folder: Path, last: date, days: int) -> Journal:
    """Two rows a day in one commit each, `days` days up to `last`; F is noon of the last."""
    journal = Journal(folder)
    for day in (last - number * DAY for number in reversed(range(days))):
        times = {"received_at": noon(day), "event_time": noon(day), "logged_at": noon(day)}
        journal.commit([{**heartbeat(0), **times, "log_date": day} for _ in range(2)])
    return journal


def joins_at(tables: str, position: int, waiting: int = 0) -> None:
    """Usage as joins leaves it: no row, but how far it has read the journal and what waits."""
    moved = {"journal": position, "waiting.lsn": waiting, LSN: 1}
    properties = CommitProperties(app_transactions=[Transaction(name, version) for name, version in moved.items()])
    write_deltalake(f"{tables}/{Table.USAGE}", USAGE.empty_table(), mode="append", commit_properties=properties)


def sessionization_at(database: str, position: int) -> None:
    write(database, "positions", {"job": "sessionization", "input": "journal", "next_position": position})


def read_journal(folder: Path, database: str, last: date = TODAY, days: int = 100) -> Journal:
    """`journal_until`, and every reader has come to its end."""
    journal = journal_until(folder, last, days)
    joins_at(journal.tables, journal.next_lsn)
    sessionization_at(database, journal.next_lsn)
    return journal


def lsns(journal: Journal) -> list[int]:
    return sorted(DeltaTable(f"{journal.tables}/{Table.JOURNAL}").to_pyarrow_table()["lsn"].to_pylist())


def retained(journal: Journal, connection: psycopg.Connection[Any], days: int | None = 40) -> Removed | None:
    return retain_days(journal.tables, Table.JOURNAL, connection, days, TODAY)


def test_whole_days_are_removed_oldest_first_while_the_job_writes(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    journal = read_journal(tmp_path, database)
    # 40 days reach into April, the month before the open one: so five days before it are the first that are kept.
    assert retained(journal, connection) == Removed("journal", date(2026, 3, 27), 90)
    assert lsns(journal) == list(range(91, 201))
    table = DeltaTable(f"{journal.tables}/{Table.JOURNAL}")
    assert table.transaction_version(LSN) == 201
    assert table.transaction_version(FRONTIER) is not None
    journal.commit([heartbeat(0)])
    assert lsns(journal)[-1] == 201
    assert retained(journal, connection) == Removed("journal", date(2026, 3, 27), 0)


def test_rows_that_were_removed_are_not_missing_in_the_journals_sum(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    journal = read_journal(tmp_path, database)
    events = Topic(EVENTS_TOPIC, "its id", (0,))
    offsets = {events.first(0): 0, events.absent(0): 3, events.position(0): 203}
    read = CommitProperties(app_transactions=[Transaction(name, at) for name, at in offsets.items()])
    table = DeltaTable(f"{journal.tables}/{Table.JOURNAL}")
    nothing = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(table, nothing, mode="append", commit_properties=read)

    def summed() -> list[tuple[Any, Any]]:
        table.update_incremental()
        lines = summary_rows(consumed_ranges(table, [events]), count_rows(table), by_reason=False)
        return [(line["removed"], line["residual"]) for line in lines]

    assert summed() == [(0, 0)]
    for days in (80, 60):
        retained(journal, connection, days)
    assert summed() == [(200 - len(lsns(journal)), 0)]


@pytest.mark.long
def test_an_event_with_elements_counts_as_one_removed_record(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    """100 days, each with a trace of three calls and another event, which is the row that an older journal had."""
    journal = Journal(tmp_path, declared=[FIELD])
    days = [TODAY - number * DAY for number in reversed(range(100))]
    for number, day in enumerate(days):
        times = {"received_at": noon(day), "event_time": noon(day), "logged_at": noon(day), "log_date": day}
        trace = [{**heartbeat(0), **times, "offset": 2 * number, "element": element} for element in (1, 2, 3)]
        journal.commit([*trace, {**heartbeat(0), **times, "offset": 2 * number + 1, "element": number % 2 or None}])
    joins_at(journal.tables, journal.next_lsn)
    sessionization_at(database, journal.next_lsn)
    events = Topic(EVENTS_TOPIC, "its id", (0,))
    offsets = {events.first(0): 0, events.absent(0): 0, events.position(0): 200}
    table = DeltaTable(f"{journal.tables}/{Table.JOURNAL}")
    read = CommitProperties(app_transactions=[Transaction(name, at) for name, at in offsets.items()])
    write_deltalake(table, pa.schema(table.schema().to_arrow()).empty_table(), mode="append", commit_properties=read)
    removed = retained(journal, connection)
    assert removed is not None
    assert removed.rows > 0
    table.update_incremental()
    [line] = summary_rows(consumed_ranges(table, [events]), count_rows(table), by_reason=False)
    assert (line["removed"], line["residual"]) == (removed.rows // 2, 0)
    assert has_each_once(table, retained_rows(table))


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize(
    ("reached", "first_retained"),
    [((201, 0, 11), 9), ((7, 0, 201), 5), ((201, 8, 201), 7), ((201, 0, None), 1), ((10, 0, 201), 9)],
    ids=["sessionization", "joins", "what waits in joins", "a reader that has not begun", "the row before a position"],
)
def test_no_day_is_removed_that_a_reader_needs(
    tmp_path: Path,
    database: str,
    connection: psycopg.Connection[Any],
    reached: tuple[int, int, int | None],
    first_retained: int,
) -> None:
    joins, waiting, sessions = reached
    journal = journal_until(tmp_path, TODAY, 100)
    joins_at(journal.tables, joins, waiting)
    if sessions is not None:
        sessionization_at(database, sessions)
    retained(journal, connection)
    assert lsns(journal)[0] == first_retained


def test_nothing_is_removed_that_a_longer_horizon_needs(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    journal = read_journal(tmp_path, database)
    progress(database, "ingestion", noon(TODAY), report={"frontier": noon(TODAY).isoformat()})
    for name in ("dedupe_horizon_seconds", "accept_past_seconds"):
        config = Jsonb({"dedupe_horizon_seconds": 86_400, "accept_past_seconds": 86_400} | {name: 89.5 * 86_400})
        connection.execute("UPDATE jobs SET config = %s WHERE job = 'ingestion'", [config])
        done = retained(journal, connection)
        assert done is not None
        assert done.before == TODAY - 91 * DAY
        assert lsns(journal)[0] == 201 - 2 * 92


CONTENTS: dict[str, Any] = {
    "meters": {
        "answers": {"unit": "answer", "count": "outcomes", "once_per": {"column": "content_hash", "within": "PT1H"}}
    }
}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize(
    ("config", "horizon_days"),
    [
        ({}, 0),
        ({"best_report_bills": True}, 37),
        ({"best_report_bills": True, "rejoin_seconds": 86_400}, 3),
        (CONTENTS, 3),
        ({"best_report_bills": True, **CONTENTS}, 40),
    ],
    ids=["the first report bills", "the best report bills", "it comes within a day", "contents", "contents and both"],
)
def test_days_in_which_an_audit_may_find_causes_are_retained(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any], config: dict[str, Any], horizon_days: int
) -> None:
    """What came up to a horizon before a request decides about it, and the months that are open are corrected."""
    journal = read_journal(tmp_path, database)
    progress(database, "joins", noon(TODAY))
    connection.execute("UPDATE jobs SET config = %s WHERE job = 'joins'", [Jsonb(config)])
    done = retained(journal, connection)
    assert done is not None
    assert done.before == date(2026, 3, 27) - horizon_days * DAY
    assert lsns(journal)[0] == 91 - 2 * horizon_days


def test_rows_that_record_rules_are_not_removed(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    journal = Journal(tmp_path)
    days = [TODAY - number * DAY for number in (100, 99, 0)]
    for number, day in enumerate(days):
        times = {"received_at": noon(day), "event_time": noon(day), "log_date": day}
        rules = '{"exact_horizon_seconds": 3600}' if number == 0 else None
        journal.commit([{**heartbeat(0), **times, "rules": rules}, {**heartbeat(0), **times}])
    joins_at(journal.tables, 7)
    sessionization_at(database, 7)
    for removed_rows in (3, 0):
        assert retained(journal, connection) == Removed("journal", date(2026, 3, 27), removed_rows)
    assert lsns(journal) == [1, 5, 6]


@pytest.mark.parametrize(
    ("state", "silent_days", "holds"), [("running", 0, True), ("stopped", 0, False), ("running", 2, False)]
)
def test_usage_waits_for_analytics_and_no_drain_does_only_while_it_is_on(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any], state: str, silent_days: int, *, holds: bool
) -> None:
    """Who was killed, or refused to start, before it was switched off has not reported that it stopped."""
    usage = DeltaWriter(str(tmp_path), Table.USAGE, "joins", 1)
    for number in range(100):
        day = TODAY - (99 - number) * DAY
        of_day = dict.fromkeys(("logged_at", "event_time", "received_at"), noon(day)) | {"log_date": day}
        texts = {"account": "a", "request_id": "r", "outcome": "matched", "cause": "stream"}
        row = {**texts, **of_day, "lsn": number + 1, "sign": 1}
        moved = {LSN: number + 2, FRONTIER: microseconds_of(noon(day)), "journal": 1}
        usage.commit(pa.Table.from_pylist([row], schema=USAGE), moved)
    write(database, "positions", {"job": "billing", "input": "usage", "next_position": 101})
    progress(database, "analytics", noon(TODAY), state=state, updated_at=datetime.now(UTC) - silent_days * DAY)
    connection.execute("UPDATE positions SET next_position = 11 WHERE job = 'analytics'")
    removed = retain_days(str(tmp_path), Table.USAGE, connection, 40, TODAY)
    assert removed is not None
    # The row before a position is its fingerprint.
    assert removed.rows == (9 if holds else (date(2026, 3, 27) - (TODAY - 99 * DAY)).days)
    assert Positions(str(tmp_path), database).runs(Job.ANALYTICS) is holds


def test_a_day_is_looked_at_in_its_own_files_alone(tmp_path: Path) -> None:
    """Each night every day is looked at that has left such a row, and the newest days have thousands of files."""
    journal_until(tmp_path, TODAY, 3)
    table = DeltaTable(str(tmp_path / Table.JOURNAL))
    looked_at = files_of(table, TODAY - DAY)
    assert [Path(file).parent.name for file in looked_at.files] == [f"log_date={TODAY - DAY}"]
    assert looked_at.count_rows() == 2


def test_nothing_is_removed_without_a_period_or_while_time_stands_still(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    """What is kept is measured at F: what is younger may decide about the next event."""
    journal = read_journal(tmp_path, database, TODAY - 90 * DAY, 20)
    assert retained(journal, connection, None) is None
    done = retained(journal, connection)
    assert done is not None
    assert done.rows == 0
    assert retain_days(str(tmp_path / "nowhere"), Table.USAGE, connection, 40, TODAY) is None


@pytest.mark.long
def test_a_stream_that_was_before_it_gets_every_row_once(
    spark: SparkSession, tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    journal = read_journal(tmp_path / "tables", database)
    seen: list[int] = []

    def on_batch(batch: DataFrame, _: int) -> None:
        seen.extend(row["lsn"] for row in batch.select("lsn").collect())

    def stream_what_is_there() -> None:
        frames = spark.readStream.format("delta").option("startingVersion", 95).option("skipChangeCommits", "true")
        query = (
            frames.load(f"{journal.tables}/{Table.JOURNAL}")
            .writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    stream_what_is_there()
    retained(journal, connection)
    journal.commit([heartbeat(0)])
    stream_what_is_there()
    assert sorted(set(seen)) == sorted(seen)
    assert seen[-1] == 201


def test_rows_of_postgres_go_by_their_own_periods(database: str, connection: psycopg.Connection[Any]) -> None:
    old, young = noon(TODAY - 500 * DAY), noon(TODAY - 10 * DAY)
    batch = {"job": "joins", "epoch": 1, "records": 1, "duration_ms": 1}
    for number, at in enumerate((old, old, young), start=1):
        lsns = {"first_position": number, "next_position": number + 1}
        write(database, "batches", {**batch, **lsns, "committed_at": at})
    write(database, "batches", {**batch, "job": "idle", "first_position": 1, "next_position": 2, "committed_at": old})
    for at in (old, young):
        place = {"topic_id": "t", "topic": "events", "partition": 0, "offset": at.day}
        why = {"reason": "too_large", "detail": "d", "isolated_at": at, "journalled_at": at}
        write(database, "isolated_records", {**place, **why}, {**place, **why, "partition": 1, "journalled_at": None})
        write(database, "exits", {"job": "joins", "ended_at": at, "how": "crashed", "reason": "r"})
        session = {"account": "a", "user_id": "u", "session_start": at, "session_end": at, "events": 1, "version": 1}
        write(database, "sessions", {**session, "retracted_at": at}, session)
        write(database, "sources", {"source": f"{at:%F}", "first_seen_at": old, "last_seen_at": at})
    threshold = {"account": "a", "period": "P1M", "first_day": old, "meter": "requests", "currency": "", "threshold": 1}
    for version in (1, 2):
        write(
            database,
            "threshold_changes",
            {**threshold, "version": version, "is_crossed": version == 1, "changed_at": old},
        )
    for at in (old, noon(TODAY - DAY)):
        ended = {"key_id": "k", "invalidated_at": at}
        write(database, "portal_invalidations", {**ended, "token_id": f"{at:%F}", "of_accounts": "*"})
        write(database, "portal_invalidations", {**ended, "account": f"{at:%F}", "generation": 4})
    progress(database, "ingestion", noon(TODAY), report={"frontier": noon(TODAY).isoformat()})
    connection.execute("UPDATE jobs SET config = '{\"source_retired_after_seconds\": 86400}'")
    done = {one.table: one.rows for one in retain_rows(connection, Retention(), TODAY)}
    removed = {"batches": 2, "exits": 1, "isolated_records": 1, "sources": 1, "sessions": 1}
    assert done == {**removed, "threshold_changes": 1, "portal_invalidations": 1}
    left = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in done}
    kept = {"batches": (2,), "exits": (1,), "isolated_records": (3,), "sources": (1,), "sessions": (3,)}
    assert left == {**kept, "threshold_changes": (1,), "portal_invalidations": (3,)}
    assert connection.execute("SELECT count(*) FROM portal_invalidations WHERE account <> ''").fetchone() == (2,)
    assert not any(one.rows for one in retain_rows(connection, Retention(), TODAY))


OF_ANALYTICS = ("analytics_panes", "pattern_outcomes", "pattern_matches", "watch_hits", "watch_hours", "watch_calls")


def watched_at(database: str, at: datetime) -> None:
    """A row of each of OF_ANALYTICS, of views and patterns that are declared and of those that are not any more."""
    for name, is_declared in (("now", True), ("once", False)):
        with psycopg.connect(database) as connection:
            row = connection.execute(
                "INSERT INTO analytics_views (view, version, definition, first_position, is_declared)"
                " VALUES (%s, %s, '{}', 1, %s) RETURNING view_id",
                [name, f"{at:%F}", is_declared],
            ).fetchone()
            assert row is not None
            number = pattern(database, f"{name}-{at:%F}")
            connection.execute(
                "UPDATE analytics_patterns SET is_declared = %s WHERE pattern_id = %s", [is_declared, number]
            )
        write(database, "analytics_panes", {"view_id": row[0], "window_start": at, "keys": "[]", "measures": "{}"})
        match(database, number, at, f"{name}-{at:%F}", {})
    write(database, "pattern_outcomes", {"minute": at, "rows": 1, "outcomes": b""})
    number = watch(database, f"{at:%F}")
    hits(database, at, number, ["r"], "a")
    call = {"watch_id": number, "hour": at, "step": 1, "name": "w", "hits": 1, "first": '[{"request_id": "r"}]'}
    write(database, "watch_calls", call)


def test_what_analytics_has_found_goes_after_its_days_while_it_is_off_also_of_what_is_not_declared_any_more(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    old, young = (noon(TODAY - days * DAY) for days in (11, 10))
    for at in (old, young):
        watched_at(database, at)
    progress(database, "analytics", noon(TODAY))
    connection.execute("UPDATE jobs SET config = '{\"keep_days\": 10}'")
    assert list(retain_analytics(connection, TODAY)) == [], "it runs, and does it itself"
    connection.execute("UPDATE jobs SET state = %s", [Phase.STOPPED])
    done = {one.table: one.rows for one in retain_analytics(connection, TODAY)}
    assert done == {**dict.fromkeys(OF_ANALYTICS, 1), "analytics_panes": 2, "pattern_matches": 2}
    left = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in OF_ANALYTICS}
    assert left == {table: (count,) for table, count in done.items()} | {"watch_calls": (2,)}
    # Of a call it is only known that it was made, until analytics has read on: else the hour would call again.
    calls = connection.execute("SELECT hour, first FROM watch_calls ORDER BY hour").fetchall()
    assert calls == [(old, []), (young, [{"request_id": "r"}])]
    midnight = datetime.combine(TODAY - 10 * DAY, time(), UTC)
    # Late outcomes of minutes that went are in no pane and no match: the others of these minutes would be missing.
    views = connection.execute("SELECT view, since FROM analytics_views WHERE since IS NOT NULL").fetchall()
    # What is withdrawn still says up to when outcomes were read.
    assert sorted(views) == [("now", midnight), ("once", old + timedelta(minutes=1))]
    patterns = connection.execute("SELECT is_declared, since FROM analytics_patterns").fetchall()
    assert sorted(patterns) == [(False, old + timedelta(minutes=1))] * 2 + [(True, midnight)] * 2
    assert not any(one.rows for one in retain_analytics(connection, TODAY))


def test_all_versions_of_a_burst_around_midnight_go_at_once(database: str, connection: psycopg.Connection[Any]) -> None:
    midnight, number = datetime.combine(TODAY - 35 * DAY, time(), UTC), pattern(database, "burst")
    for name, seconds in (("burst", (1, -1, -1)), ("other", (1, 0, 0))):
        for version, after in enumerate(seconds, start=1):
            match(database, number, midnight + timedelta(seconds=after), name, {}, version)
    assert {one.table: one.rows for one in retain_analytics(connection, TODAY)}["pattern_matches"] == 3
    assert connection.execute("SELECT DISTINCT match_id FROM pattern_matches").fetchall() == [("other",)]


def test_a_view_that_is_declared_after_all_was_withdrawn_and_removed_begins_behind_what_was_read(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    old = noon(TODAY - 40 * DAY)
    watched_at(database, old)
    connection.execute("UPDATE analytics_views SET is_declared = false")
    connection.execute("UPDATE analytics_patterns SET is_declared = false")
    unread_since = connection.execute(f"SELECT {UNREAD_SINCE}").fetchone()
    assert unread_since == (old + timedelta(minutes=1),)
    progress(database, "analytics", noon(TODAY), state=Phase.STOPPED)
    assert any(one.rows for one in retain_analytics(connection, TODAY))
    assert connection.execute(f"SELECT {UNREAD_SINCE}").fetchone() == unread_since


def test_an_analytics_that_has_not_reported_for_a_day_is_off_and_without_a_configuration_days_are_the_default(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    watched_at(database, noon(TODAY - 36 * DAY))
    progress(database, "analytics", noon(TODAY), updated_at=datetime.now(UTC) - DAY + timedelta(minutes=5))
    assert list(retain_analytics(connection, TODAY)) == []
    connection.execute("UPDATE jobs SET updated_at = %s", [datetime.now(UTC) - DAY])
    assert {one.before for one in retain_analytics(connection, TODAY)} == {TODAY - 35 * DAY}
    assert connection.execute("SELECT count(*) FROM analytics_panes").fetchone() == (0,)


def test_no_source_is_removed_that_ingestion_may_still_wait_for(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    seen = noon(TODAY - 99 * DAY)
    write(database, "sources", {"source": "s", "first_seen_at": seen, "last_seen_at": seen})
    assert not any(one.rows for one in retain_rows(connection, Retention(), TODAY))
    progress(database, "ingestion", noon(TODAY), report={"frontier": noon(TODAY).isoformat()})
    for retired_after_days, removed in ((100, 0), (98, 1)):
        config = Jsonb({"source_retired_after_seconds": retired_after_days * 86_400})
        connection.execute("UPDATE jobs SET config = %s", [config])
        done = {one.table: one.rows for one in retain_rows(connection, Retention(), TODAY)}
        assert done["sources"] == removed


def test_the_open_month_and_the_one_before_are_kept_in_every_zone() -> None:
    assert oldest_open_day(date(2026, 5, 2)) == date(2026, 2, 26), "it may still be April"
    assert oldest_open_day(date(2026, 5, 3)) == date(2026, 3, 29)
    assert oldest_open_day(date(2026, 5, 31)) == date(2026, 3, 29)
    assert oldest_open_day(date(2026, 1, 15)) == date(2025, 11, 28)


@pytest.mark.parametrize("days", ["journal_days", "usage_days", "retired_sources_days"])
def test_retention_cannot_be_shorter_than_deduplication(days: str) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 36"):
        Retention.model_validate({days: 35})
