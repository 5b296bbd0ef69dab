"""A position is of one table: another one, an older state, or a state that was rolled back is refused, in a sentence.

Real Delta tables. A log is rolled back as a restore does it: the newest commits are gone, others take their numbers.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.position import Position
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Fenced, Refused
from jobs.streams import USAGE, Table
from tests.streaming.journals import START, Journal, heartbeat

DAY = timedelta(days=1)


def journal_of(folder: Path, commits: int, offset: int = 0) -> Journal:
    journal = Journal(folder)
    for number in range(commits):
        journal.commit([{**heartbeat(number), "offset": offset + number}])
    return journal


def upstream(tables: Path) -> Upstream:
    found = Upstream(str(tables), Table.JOURNAL)
    found.refresh()
    return found


def position(tables: Path, next_lsn: int) -> Position:
    """The position that a reader would hold now."""
    return upstream(tables).verified("job", Position(next_lsn))


def roll_back(tables: Path, commits: int) -> None:
    """Take the newest commits out of the log, as if it were restored from a copy of then."""
    for log in sorted((tables / Table.JOURNAL / "_delta_log").glob("*.json"))[-commits:]:
        log.unlink()


def test_a_position_stays_valid_after_commits_and_compaction(
    tmp_path: Path,
) -> None:
    journal = journal_of(tmp_path, 4)
    held = position(tmp_path, 3)
    assert held.table is not None
    assert held.row is not None
    journal.commit([heartbeat(9)])
    compact(str(tmp_path), Table.JOURNAL, before=START.date() + DAY, keep=timedelta(0))
    assert upstream(tmp_path).verified("job", held) == held


def test_a_position_of_an_older_release_adopts_its_table(tmp_path: Path) -> None:
    journal_of(tmp_path, 4)
    adopted = upstream(tmp_path).verified("job", Position(3))
    assert upstream(tmp_path).verified("job", adopted) == adopted
    assert adopted == position(tmp_path, 3)


def test_the_first_position_needs_no_row_before_it(tmp_path: Path) -> None:
    journal_of(tmp_path, 1)
    assert position(tmp_path, 1).row is None
    assert upstream(tmp_path).verified("job", position(tmp_path, 1)).next_lsn == 1


@pytest.mark.parametrize("commits", [2, 4, 8])
def test_a_position_in_another_table_is_refused_however_long_the_table_is(tmp_path: Path, commits: int) -> None:
    journal_of(tmp_path / "old", 4)
    journal_of(tmp_path / "new", commits)
    with pytest.raises(Refused, match=r"of another table than .*; put back the journal that was read, or start over"):
        upstream(tmp_path / "new").verified("job", position(tmp_path / "old", 5))


def test_a_rolled_back_table_is_refused(tmp_path: Path) -> None:
    journal_of(tmp_path, 4)
    held = position(tmp_path, 5)
    roll_back(tmp_path, 2)
    with pytest.raises(Refused, match=r"ends before lsn 3: it is older than what was made of it; restore the newer"):
        upstream(tmp_path).verified("job", held)


def test_a_table_that_was_rolled_back_and_has_grown_past_the_position_is_refused(tmp_path: Path) -> None:
    journal_of(tmp_path, 4)
    held, before = position(tmp_path, 4), position(tmp_path, 2)
    roll_back(tmp_path, 2)
    journal = Journal(tmp_path, epoch=2)
    for number in range(6):
        journal.commit([{**heartbeat(number), "offset": 100 + number}])
    with pytest.raises(Refused, match=r"another row there: it was rolled back and has grown since"):
        upstream(tmp_path).verified("job", held)
    # What was folded is there still: a reader that was not so far goes on.
    assert upstream(tmp_path).verified("job", before) == before


def test_a_position_survives_retention_of_the_row_before_it(tmp_path: Path) -> None:
    journal_of(tmp_path, 6)
    held = position(tmp_path, 4)
    # Rows that say what decides stay where all others of their day go.
    DeltaTable(f"{tmp_path}/{Table.JOURNAL}").delete("lsn IN (1, 3)")
    assert upstream(tmp_path).verified("job", held) == held
    with pytest.raises(Refused, match="of another table"):
        upstream(tmp_path).verified("job", replace(held, table=held.row))


@pytest.mark.parametrize("regrown", [0, 2, 5])
def test_a_log_that_is_rolled_back_while_it_is_read_is_noticed(tmp_path: Path, regrown: int) -> None:
    journal_of(tmp_path, 4)
    reader = upstream(tmp_path)
    reader.refresh()
    roll_back(tmp_path, 2)
    for number in range(regrown):
        DeltaWriter(str(tmp_path), Table.JOURNAL, "ingestion", 2 + number)
    with pytest.raises(Refused, match="was deleted, recreated or rolled back while it was read"):
        reader.refresh()


def test_a_table_that_is_deleted_or_recreated_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    journal_of(tmp_path, 4)
    reader = upstream(tmp_path)
    shutil.rmtree(tmp_path / Table.JOURNAL)
    with pytest.raises(Refused, match="recreated"):
        reader.refresh()
    journal_of(tmp_path, 9)
    with pytest.raises(Refused, match="recreated"):
        reader.refresh()


def test_a_cleaned_commit_does_not_make_it_another_table(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 4)
    reader = upstream(tmp_path)
    journal.commit([heartbeat(9)])
    DeltaTable(f"{tmp_path}/{Table.JOURNAL}").create_checkpoint()
    for log in sorted((tmp_path / Table.JOURNAL / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    reader.refresh()
    assert reader.next_lsn == 6


def test_a_driver_does_not_write_to_a_table_that_was_rolled_back(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, 4)
    roll_back(tmp_path, 2)
    with pytest.raises(Fenced, match="rolled back below this driver"):
        journal.commit([heartbeat(9)])


def test_rows_of_usage_are_identified_by_their_sources(tmp_path: Path) -> None:
    writer = DeltaWriter(str(tmp_path), Table.USAGE, "joins", 1)
    who = {"account": "a", "request_id": "r", "outcome": "matched", "sign": 1, "cause": "stream"}
    when = {"log_date": START.date(), "logged_at": START, "event_time": START, "received_at": START}
    rows = [{"lsn": lsn, "request_lsn": lsn, **who, **when} for lsn in (1, 2)]
    writer.commit(pa.Table.from_pylist(rows, schema=USAGE), {LSN: 3})
    usage = Upstream(str(tmp_path), Table.USAGE)
    usage.refresh()
    assert usage.verified("billing", Position(2)).row != usage.verified("billing", Position(3)).row


def test_two_threads_recognize_a_growing_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver looks in its batches and in its reports; where a store is far away the looks overlap."""
    journal = journal_of(tmp_path, 1)
    look, head = upstream(tmp_path), obstore.head
    is_selected, other_has_looked = threading.Event(), threading.Event()

    def from_far_away(*args: Any) -> Any:
        answer = head(*args)
        if not is_selected.is_set():
            is_selected.set()
            other_has_looked.wait(1)
        return answer

    monkeypatch.setattr(obstore, "head", from_far_away)
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(look.refresh)
        assert is_selected.wait(10)
        journal.commit([{**heartbeat(1), "offset": 1}])
        look.refresh()
        other_has_looked.set()
    assert slow.exception() is None
    assert look.next_lsn == journal.next_lsn
