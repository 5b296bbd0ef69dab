"""What a reader knows of the end of its table: the log's commits say it, and a table that was just opened agrees."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.known_commit import MAX_COMMITS
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, instant_of
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Refused
from jobs.streams import USAGE, Table
from tests.pipelines.test_own_commits import NOW, POSITION, append, commit, driver, log, looks


def upstream(tables: Path) -> Upstream:
    found = Upstream(str(tables), Table.USAGE)
    found.refresh()
    return found


def agrees(known: Upstream, path: str) -> bool:
    new = DeltaTable(path)
    next_lsn = new.transaction_version(LSN) or 1
    assert known.reached == (new.version(), next_lsn)
    assert (known.version, known.next_lsn) == known.reached
    assert known.frontier == instant_of(new.transaction_version(FRONTIER))
    assert known.columns == tuple(field.name for field in new.schema().fields)
    return True


def test_a_look_reads_nothing_of_the_table(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    known = upstream(tmp_path)
    for number in range(3):
        commit(mine, 2)
        mine.commit(USAGE.empty_table(), {FRONTIER: 1 + number})
        with looks() as found:
            known.refresh()
            known.refresh()
        assert found == []
        assert agrees(known, mine.path)
    assert known.table is not None
    assert known.table.version() == known.version, "who asks for the table gets what was looked at"
    assert known.table.transaction_version(POSITION) == 6


def test_columns_that_a_table_gets_are_known_at_the_next_look(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    known = upstream(tmp_path)
    add_column(mine.path, "another")
    commit(mine)
    known.refresh()
    assert "another" in known.columns
    assert agrees(known, mine.path)


def test_of_many_commits_the_table_is_opened(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    known = upstream(tmp_path)
    for _ in range(MAX_COMMITS + 5):
        mine.commit(USAGE.empty_table(), {FRONTIER: 1})
    with looks() as found:
        known.refresh()
    assert found != []
    assert agrees(known, mine.path)


def test_commits_that_were_cleaned_away_before_they_were_seen_are_in_the_table(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    known = upstream(tmp_path)
    for _ in range(25):
        commit(mine)
    for number in log(mine.path):
        if number < 20:
            Path(mine.path, "_delta_log", f"{number:020d}.json").unlink()
    known.refresh()
    assert agrees(known, mine.path)


@pytest.mark.parametrize("what", ["gone", "older", "another"])
def test_a_log_that_was_put_back_or_made_again_is_refused(tmp_path: Path, what: str) -> None:
    mine = driver(tmp_path)
    shutil.copytree(mine.path, tmp_path / "of then")
    for _ in range(3):
        commit(mine)
    known = upstream(tmp_path)
    shutil.rmtree(mine.path)
    if what == "older":
        shutil.copytree(tmp_path / "of then", mine.path)
    elif what == "another":
        another = driver(tmp_path)
        for _ in range(6):
            commit(another)
    with pytest.raises(Refused, match="was deleted, recreated or rolled back while it was read"):
        known.refresh()
    assert known.next_lsn == 4


def test_a_log_that_is_replaced_while_it_is_followed_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = driver(tmp_path)
    commit(mine)
    known = upstream(tmp_path)
    assert known._held is not None
    read = known._held.commit

    def replaced(version: int) -> object:
        if version == (known.version or 0) + 1:
            shutil.rmtree(mine.path)
            another = driver(tmp_path)
            for _ in range(5):
                commit(another, 7)
        return read(version)

    monkeypatch.setattr(known._held, "commit", replaced)
    with pytest.raises(Refused, match="was deleted, recreated or rolled back while it was read"):
        known.refresh()
    assert known.next_lsn == 2


def test_a_log_that_is_replaced_before_its_table_is_asked_for_is_not_believed(tmp_path: Path) -> None:
    """It is the same table, and goes on beyond what was read, with other commits."""
    mine = driver(tmp_path)
    known = upstream(tmp_path)
    shutil.copytree(mine.path, tmp_path / "of then")
    commit(mine)
    known.refresh()
    shutil.rmtree(mine.path)
    shutil.copytree(tmp_path / "of then", mine.path)
    another = driver(tmp_path, 2)
    for _ in range(3):
        commit(another, 7)
    with pytest.raises(Refused, match="was deleted, recreated or rolled back while it was read"):
        _ = known.table
    with pytest.raises(Refused, match="was deleted, recreated or rolled back while it was read"):
        known.refresh()
    assert known.next_lsn == 2


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_committed_a_reader_knows_what_the_table_says(tmp_path: Path, seed: int) -> None:
    """Random commits of rows, of none, of two applications, compactions and columns; looks now and then."""
    chance, mine, known = random.Random(seed), driver(tmp_path), upstream(tmp_path)
    for number in range(2, 42):
        match chance.choice(["rows", "rows", "frontier", "compact", "column", "replace", "look", "table"]):
            case "rows":
                append(mine, [NOW, NOW])
            case "frontier":
                commit_frontier(mine, number)
            case "compact":
                compact(str(tmp_path), Table.USAGE, before=NOW.date() + timedelta(days=1), keep=timedelta(days=7))
            case "column":
                add_column(mine.path, f"of {number}")
            case "replace":
                mine = driver(tmp_path, number)
            case "look":
                known.refresh()
                assert agrees(known, mine.path)
            case "table":
                assert known.table is not None
                assert known.table.version() >= (known.version or 0)
    known.refresh()
    assert agrees(known, mine.path)


def commit_frontier(by: DeltaWriter, number: int) -> None:
    by.append(lambda lsn: (USAGE.empty_table(), {LSN: lsn, FRONTIER: number}))


def add_column(path: str, name: str) -> None:
    DeltaTable(path).alter.add_columns([Field(name, PrimitiveType("string"))])


def test_a_writer_that_was_given_columns_goes_on(tmp_path: Path) -> None:
    mine: DeltaWriter = driver(tmp_path)
    commit(mine)
    add_column(mine.path, "another")
    commit(mine)
    assert DeltaTable(mine.path).to_pyarrow_table()["another"].to_pylist() == [None, None]
