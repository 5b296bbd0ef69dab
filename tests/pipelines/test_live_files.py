"""The files of a table, followed commit by commit, are those that the table has when it is opened."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from jobs.runtime.delta.live_files import FILES, LiveFiles, files_of
from jobs.runtime.delta.table import LSN, REMOVED
from tests.journal_files import commit
from tests.ordered_events import SECOND, Row


def followed(tables: Path) -> LiveFiles:
    live = LiveFiles(str(tables / "journal"), (LSN, REMOVED))
    live.read(DeltaTable(str(tables / "journal")))
    return live


@pytest.mark.parametrize("seed", range(3))
def test_any_commits_merges_erasures_and_removals_are_followed(tmp_path: Path, seed: int) -> None:
    chance, lsn = random.Random(seed), 1
    table = commit(tmp_path, [Row(1, None, None)])
    live = followed(tmp_path)
    for _ in range(15):
        for _ in range(chance.randint(1, 3)):
            times = [chance.choice((None, chance.randint(0, 10**9) * SECOND // 7)) for _ in range(chance.randint(1, 3))]
            table = commit(tmp_path, [Row(lsn + n, at, 5 * SECOND) for n, at in enumerate(times, 1)])
            lsn += len(times)
        some = chance.randint(1, lsn)
        match chance.randint(0, 5):
            case 0:
                table.optimize.compact()
            case 1:
                table.update({"value": "NULL"}, predicate=f"lsn = {some}")
            case 2:
                properties = CommitProperties(app_transactions=[Transaction(REMOVED, some)])
                table.delete(f"lsn = {some}", commit_properties=properties)
        assert live.goes_on()
        assert live.follow()
        assert not live.goes_on()
        now = DeltaTable(str(tmp_path / "journal"))
        assert live.files.sort("min.lsn", "path").equals(files_of(now).sort("min.lsn", "path"))
        assert live.transactions == {name: now.transaction_version(name) for name in (LSN, REMOVED)}
    assert live.files["max.event_time"].drop_nulls().len() > 0


def test_a_table_that_got_a_column_was_rolled_back_or_has_no_statistics_is_opened_again(tmp_path: Path) -> None:
    table = commit(tmp_path, [Row(1, SECOND, None)])
    live = followed(tmp_path)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 4 hours"})
    assert not live.follow()
    live.read(DeltaTable(str(tmp_path / "journal")))
    assert live.follow()
    commit(tmp_path, [Row(2, SECOND, None)])
    assert live.follow()
    log = tmp_path / "journal" / "_delta_log"
    (log / f"{2:020d}.json").unlink()
    assert live.goes_on()
    assert not live.follow()


def test_a_table_without_files_has_none(tmp_path: Path) -> None:
    table = commit(tmp_path, [Row(1, SECOND, None)])
    table.delete()
    assert files_of(DeltaTable(str(tmp_path / "journal"))).equals(pl.DataFrame(schema=FILES))


def test_a_file_that_a_commit_states_again_is_there_once(tmp_path: Path) -> None:
    """As Spark does that computes statistics of a table: the later statement counts."""
    commit(tmp_path, [Row(1, SECOND, None)])
    live = followed(tmp_path)
    table = commit(tmp_path, [Row(2, SECOND, None)])
    assert live.follow()
    log = tmp_path / "journal" / "_delta_log"
    (added,) = [line for line in (log / f"{table.version():020d}.json").read_text().splitlines() if '"add"' in line]
    (log / f"{table.version() + 1:020d}.json").write_text(added + "\n")
    assert live.follow()
    assert live.files.equals(files_of(DeltaTable(str(tmp_path / "journal"))))
