"""What a Delta sink promises: a fenced or stale driver cannot commit, and a commit is one file with its positions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from jobs.runtime.delta.followed import FollowedTable
from jobs.runtime.delta.table import (
    LSN,
    DeltaWriter,
    committing,
    instant_of,
    microseconds_of,
    open_table,
    probe_put_if_absent,
)
from jobs.runtime.errors import Fenced
from jobs.streams import ACCOUNTS, Table

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def accounts(lsn: int, count: int = 1) -> pa.Table:
    row = {"account": "a", "name": "A", "plan": "p", "currency": "EUR", "timezone": "UTC", "effective_from": NOW}
    return pa.Table.from_pylist([{"lsn": lsn + i, **row, "deleted": False} for i in range(count)], schema=ACCOUNTS)


def writer(tables: Path, epoch: int) -> DeltaWriter:
    return DeltaWriter(str(tables), Table.ACCOUNTS, "joins", epoch)


def rows(tables: Path) -> int:
    table = open_table(str(tables), Table.ACCOUNTS)
    assert table is not None
    return int(table.to_pyarrow_table().num_rows)


def test_a_commit_holds_its_rows_and_positions_in_one_file(tmp_path: Path) -> None:
    first = writer(tmp_path, 1)
    first.commit(accounts(1, 1000), {LSN: 1001, "journal": 7})
    table = open_table(str(tmp_path), Table.ACCOUNTS)
    assert table is not None
    assert (table.transaction_version(LSN), table.transaction_version("journal")) == (1001, 7)
    assert len(table.file_uris()) == 1


def test_an_older_driver_that_wakes_up_cannot_commit(tmp_path: Path) -> None:
    old = writer(tmp_path, 1)
    writer(tmp_path, 2).commit(accounts(1), {LSN: 2})
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        old.commit(accounts(1), {LSN: 2})
    assert rows(tmp_path) == 1


def forked(one: DeltaWriter, tables: Path) -> DeltaWriter:
    """The same driver once more, as a machine that was copied while it ran has it."""
    found = open_table(str(tables), Table.ACCOUNTS)
    assert found is not None
    other = DeltaWriter.__new__(DeltaWriter)
    other.__dict__.update(one.__dict__, known=dict(one.known), _followed=FollowedTable(found))
    return other


def test_rows_committed_by_another_driver_of_the_epoch_are_not_written_again(tmp_path: Path) -> None:
    one = writer(tmp_path, 1)
    other = forked(one, tmp_path)
    one.commit(accounts(1), {LSN: 2})
    with pytest.raises(Fenced, match="goes on at lsn 2, this driver left it at 1"):
        other.commit(accounts(1), {LSN: 2})
    assert rows(tmp_path) == 1


def test_of_two_concurrent_commits_the_table_takes_one(tmp_path: Path) -> None:
    one = writer(tmp_path, 1)
    other = forked(one, tmp_path)
    one.commit(accounts(1), {LSN: 2})
    with pytest.raises(CommitFailedError, match="oncurrent transaction"):
        other._write(accounts(1), other._fence())
    assert rows(tmp_path) == 1


def test_a_driver_whose_input_position_was_moved_by_another_is_fenced(tmp_path: Path) -> None:
    mine = writer(tmp_path, 1)
    assert mine.watch("journal") is None
    stranger = open_table(str(tmp_path), Table.ACCOUNTS)
    assert stranger is not None
    write_deltalake(stranger, ACCOUNTS.empty_table(), mode="append", commit_properties=committing({"journal": 5}))
    with pytest.raises(Fenced, match="journal is at 5, this driver left it at None"):
        mine.commit(accounts(1), {LSN: 2})
    assert rows(tmp_path) == 0


def test_an_epoch_that_the_table_has_seen_is_not_taken_twice(tmp_path: Path) -> None:
    writer(tmp_path, 3)
    with pytest.raises(Fenced, match=r"knows joins\.epoch 3"):
        writer(tmp_path, 3)


def test_a_driver_resumes_only_its_own_epoch(tmp_path: Path) -> None:
    first = DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 3, driver=7)
    first.commit(accounts(1), {LSN: 2})
    again = DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 3, driver=7)
    again.commit(accounts(2), {LSN: 3})
    with pytest.raises(Fenced, match=r"knows joins\.epoch 3"):
        DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 3, driver=8)
    DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 4, driver=8)
    with pytest.raises(Fenced, match=r"knows joins\.epoch 4"):
        DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 3, driver=7)
    assert rows(tmp_path) == 2


def test_state_from_before_a_driver_retook_its_epoch_cannot_be_committed(tmp_path: Path) -> None:
    before = DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 3, driver=7)
    again = DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 3, driver=7)
    again.commit(accounts(1), {LSN: 2})
    with pytest.raises(Fenced, match="goes on at lsn 2, this driver left it at 1"):
        before.commit(accounts(1), {LSN: 2})
    assert rows(tmp_path) == 1


def test_the_probe_finds_that_this_store_can_fence(tmp_path: Path) -> None:
    probe_put_if_absent(str(tmp_path), "joins", 1)
    probe_put_if_absent(str(tmp_path), "joins", 1)
    assert list((tmp_path / "_probe").iterdir()) == []


def test_a_frontier_keeps_its_microseconds() -> None:
    instant = datetime(2026, 11, 21, 7, 38, 0, 123457, tzinfo=UTC)
    assert instant_of(microseconds_of(instant)) == instant
    assert instant_of(None) is None
