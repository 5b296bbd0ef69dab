"""joins begins from what can still meet a later row, however long the journal is: older files are not even opened."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl

from jobs.joins.config import JoinsConfig
from jobs.joins.sink import UsageSink
from jobs.streams import Table
from tests.clocks import HandClock
from tests.streaming.journals import START, Journal, event, heartbeat
from tests.streaming.test_usage_sink import CATALOG, COMPLETION, REQUEST, driver, usage

DAY_S = 86_400
TIMEOUT = JoinsConfig(completion_timeout_seconds=600)


def begun(database: str, journal: Journal, clock: HandClock) -> UsageSink:
    # No start and no few rows need Spark; only whether it has executors is asked.
    nothing: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.master": "local[2]"}))
    return driver(nothing, database, journal, TIMEOUT, clock)


def lived(database: str, tables: Path, days: int, pairs_a_day: int) -> tuple[Journal, UsageSink, HandClock]:
    """A journal and usage of so many days, read as it came; a request of the last minute waits."""
    journal, clock = Journal(tables), HandClock(START)
    sink = begun(database, journal, clock)
    for day in range(days):
        dated = {"log_date": START.date() + timedelta(days=day), "logged_at": START + timedelta(days=day)}
        rows = CATALOG if day == 0 else []
        for number in range(pairs_a_day):
            second, name = day * DAY_S + number * 600 / pairs_a_day, f"{day}-{number}"
            rows = [*rows, event(REQUEST, name, second), event(COMPLETION, name, second + 1)]
        last = (day + 1) * DAY_S - 1
        rows = [*rows, heartbeat(last - 1), event(REQUEST, f"{day}-waits", last)]
        journal.commit([{**row, **dated} for row in rows])
        sink.process(journal.rows(sink.position()).to_arrow())
        clock.go(DAY_S)
    return journal, sink, clock


def forget_files(tables: Path, table: Table, days: int) -> int:
    """Delete the files of the first days behind the table's back; how many bytes they had."""
    size_bytes = 0
    for day in range(days):
        for file in (tables / table / f"log_date={START.date() + timedelta(days=day)}").glob("*.parquet"):
            size_bytes += file.stat().st_size
            file.unlink()
    return size_bytes


def test_joins_restarts_without_files_older_than_its_timeouts(database: str, tmp_path: Path) -> None:
    days = 12
    journal, sink, clock = lived(database, tmp_path, days, 5)
    before = usage(journal)
    known = (sink.position(), sink.frontier(), sink.status()["waiting"])
    # The last day, and a day of clocks that may differ before it.
    assert forget_files(tmp_path, Table.JOURNAL, days - 2) > 0
    assert forget_files(tmp_path, Table.USAGE, days - 2) > 0
    again = begun(database, journal, clock)
    assert (again.position(), again.frontier(), again.status()["waiting"]) == known == (journal.next_lsn, known[1], 1)
    met = event(COMPLETION, f"{days - 1}-waits", days * DAY_S + 5)
    twice = event(COMPLETION, f"{days - 1}-0", days * DAY_S + 6)
    dated = {"log_date": START.date() + timedelta(days=days), "logged_at": START + timedelta(days=days)}
    journal.commit([{**row, **dated} for row in (met, twice, heartbeat(days * DAY_S + 3_600))])
    again.process(journal.rows(again.position()).to_arrow())
    rows = pl.read_parquet([str(file) for file in (tmp_path / Table.USAGE).glob(f"log_date={dated['log_date']}/*")])
    assert sorted(rows.select("request_id", "outcome").rows()) == [
        (f"{days - 1}-0", "orphaned"),
        (f"{days - 1}-waits", "matched"),
    ]
    assert before.height == days * 5 + (days - 1)
