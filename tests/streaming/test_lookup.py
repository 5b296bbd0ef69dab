"""Whether a table still has all rows from a day on, so that what was made of them can be made again."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from jobs.analytics.retractions import rebuildable
from jobs.runtime.delta.lookup import DeltaLookup
from jobs.runtime.delta.table import LSN
from jobs.streams import Table
from tests.streaming.journals import Journal, heartbeat

FIRST = date(2026, 3, 1)
DAY = timedelta(days=1)
RULES = '{"exact_horizon_seconds": 3600}'


def has_all(tables: Path) -> list[bool]:
    lookup = DeltaLookup(cast("Any", None), str(tables))
    return [lookup.has_all_since(Table.JOURNAL, FIRST + number * DAY) for number in range(-1, 3)]


def journal_of(tables: Path, *days: list[str | None]) -> DeltaTable:
    """A day each, with one row for each `rules`."""
    journal = Journal(tables)
    for number, rules in enumerate(days):
        day = {"log_date": FIRST + number * DAY}
        journal.commit([{**heartbeat(0), **day, "rules": row} for row in rules])
    return DeltaTable(f"{tables}/{Table.JOURNAL}")


def test_a_table_from_which_nothing_was_removed_has_all(tmp_path: Path) -> None:
    assert has_all(tmp_path) == [True] * 4
    journal_of(tmp_path, [RULES], [None, None], [None])
    assert has_all(tmp_path) == [True] * 4


@pytest.mark.parametrize("left", [1, 2])
@pytest.mark.parametrize("a_day", [1, 2])
def test_a_day_of_which_only_rows_of_rules_are_left_was_removed(tmp_path: Path, left: int, a_day: int) -> None:
    table = journal_of(tmp_path, [*[RULES] * left, None], [None] * a_day, [None] * a_day)
    table.delete(f"log_date = DATE '{FIRST}' AND rules IS NULL")
    assert has_all(tmp_path) == [False, False, True, True]


def test_rows_that_an_earlier_release_removed_without_counting_them_are_missed(tmp_path: Path) -> None:
    made = journal_of(tmp_path / "made", [None], [None, None], [None]).to_pyarrow_table()
    counted = CommitProperties(app_transactions=[Transaction(LSN, 5)])
    path = str(tmp_path / Table.JOURNAL)
    write_deltalake(path, made, partition_by=["log_date"], commit_properties=counted)
    DeltaTable(path).delete(f"log_date = DATE '{FIRST}'")
    assert has_all(tmp_path) == [False, False, True, True]


@pytest.mark.parametrize("removed", [Table.USAGE, Table.JOURNAL])
def test_a_minute_is_made_again_only_where_neither_usage_nor_the_journal_lacks_rows_of_it(removed: Table) -> None:
    """Without the journal's rows its outcomes would have neither region nor latency."""
    old, young = datetime(2026, 3, 4, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC)

    def has_all_since(table: Table, day: date) -> bool:
        return table is not removed or day >= date(2026, 3, 3)

    assert rebuildable([old, young], cast("Any", SimpleNamespace(has_all_since=has_all_since))) == [young]
