"""A handle that is kept for long begins with a checkpoint now and then, and never shows another version for it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from jobs.runtime.delta.followed import CHECKPOINT_INTERVAL, COMMITS_PER_CHECKPOINT, FollowedTable
from jobs.runtime.delta.new_files import Folder
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Fenced, Outrun, Refused
from jobs.streams import ACCOUNTS, SCHEMAS, USAGE, Table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL = 10


def frequent(tables: Path, table: Table = Table.ACCOUNTS) -> None:
    """A table with a checkpoint every ten commits, if there is none yet."""
    partitions = ["log_date"] if "log_date" in SCHEMAS[table].names else None
    settings = {CHECKPOINT_INTERVAL: str(INTERVAL)}
    path = f"{tables}/{table}"
    DeltaTable.create(path, SCHEMAS[table], mode="ignore", partition_by=partitions, configuration=settings)


def writer(tables: Path, epoch: int = 1) -> DeltaWriter:
    frequent(tables)
    return DeltaWriter(str(tables), Table.ACCOUNTS, "joins", epoch)


def account(lsn: int) -> pa.Table:
    row = {"lsn": lsn, "account": "a", "effective_from": NOW, "deleted": False}
    return pa.Table.from_pylist([row], schema=ACCOUNTS)


def commit(by: DeltaWriter, times: int = 1) -> None:
    for _ in range(times):
        by.commit(account(by.next_lsn), {LSN: by.next_lsn + 1})


def lsns(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table(columns=["lsn"])["lsn"].to_pylist())


def checkpoints(tables: Path, table: Table = Table.ACCOUNTS) -> list[int]:
    return sorted(int(file.name[:20]) for file in (tables / table / "_delta_log").glob("*.checkpoint.parquet"))


def test_writers_and_readers_follow_few_commits_and_see_every_one(tmp_path: Path) -> None:
    mine = writer(tmp_path)
    upstream = Upstream(str(tmp_path), Table.ACCOUNTS)
    followed: list[int] = []
    for number in range(1, 5 * INTERVAL):
        commit(mine)
        upstream.refresh()
        assert upstream._followed is not None
        followed += [mine._followed.commits_followed, upstream._followed.commits_followed]
        assert upstream.reached == (mine.table.version(), number + 1)
    assert max(followed) <= INTERVAL + 1
    assert len(checkpoints(tmp_path)) >= 4
    new = DeltaTable(mine.path)
    for kept in (mine.table, upstream.table):
        assert kept is not None
        assert kept.version() == new.version()
        assert lsns(kept) == lsns(new) == list(range(1, 5 * INTERVAL))
        assert all(kept.transaction_version(name) == new.transaction_version(name) for name in (LSN, "joins.epoch"))


def test_commits_of_files_and_of_rows_are_followed_alike(tmp_path: Path) -> None:
    frequent(tmp_path, Table.USAGE)
    mine = DeltaWriter(str(tmp_path), Table.USAGE, "joins", 1)
    nothing = USAGE.empty_table()
    values = {"log_date": NOW.date(), "logged_at": NOW}
    for _ in range(3 * INTERVAL):
        row = {
            field.name: values.get(field.name, mine.next_lsn if field.name == LSN else _any(field)) for field in USAGE
        }
        file = Folder(mine.path, None).write(pa.Table.from_pylist([row], schema=USAGE), NOW, mine.statistics)
        mine.commit_files([file], {LSN: mine.next_lsn + 1})
        assert mine._followed.commits_followed <= INTERVAL + 1
        mine.commit(nothing, {"joins.seen": mine.next_lsn})
        assert mine._followed.commits_followed <= INTERVAL + 1
    assert lsns(DeltaTable(mine.path)) == lsns(mine.table) == list(range(1, 3 * INTERVAL + 1))


def _any(field: pa.Field) -> object:
    if field.nullable:
        return None
    if pa.types.is_timestamp(field.type):
        return NOW
    return NOW.date() if pa.types.is_date(field.type) else "" if pa.types.is_string(field.type) else 0


def test_a_zombie_that_opens_its_table_again_is_fenced(tmp_path: Path) -> None:
    zombie = writer(tmp_path, 1)
    handle = due(zombie)
    commit(writer(tmp_path, 2), INTERVAL)
    before = lsns(DeltaTable(zombie.path))
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        commit(zombie)
    assert zombie.table is not handle
    assert lsns(DeltaTable(zombie.path)) == before


def test_a_writer_that_opens_its_table_again_behind_others_rows_is_outrun(tmp_path: Path) -> None:
    one = writer(tmp_path)
    handle = due(one)
    other = DeltaWriter.__new__(DeltaWriter)
    other.__dict__.update(one.__dict__, known=dict(one.known), _followed=FollowedTable(DeltaTable(one.path)))
    commit(other, 2)
    with pytest.raises(Outrun, match=f"goes on at lsn {other.next_lsn}, this driver left it at {other.next_lsn - 2}"):
        commit(one)
    assert one.table is not handle
    commit(one)
    assert lsns(DeltaTable(one.path)) == list(range(1, other.next_lsn + 1))


def due(by: DeltaWriter) -> DeltaTable:
    """The writer's handle, of the version after a checkpoint: the next commit opens another."""
    commit(by, INTERVAL - by.table.version())
    assert by._followed.commits_followed > 0
    return by.table


def test_a_checkpoint_that_was_never_written_is_no_error(tmp_path: Path) -> None:
    mine = writer(tmp_path)
    commit(mine, INTERVAL)
    log = tmp_path / Table.ACCOUNTS / "_delta_log"
    for file in [*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"]:
        file.unlink()
    commit(mine, INTERVAL)
    assert mine._followed.commits_followed <= INTERVAL + 1
    assert lsns(mine.table) == list(range(1, 2 * INTERVAL + 1))


@pytest.mark.parametrize("what", ["gone", "older", "another"])
def test_a_table_that_is_not_the_one_that_was_followed_is_not_opened_instead(tmp_path: Path, what: str) -> None:
    mine = writer(tmp_path)
    shutil.copytree(mine.path, tmp_path / "of then")
    upstream = Upstream(str(tmp_path), Table.ACCOUNTS)
    upstream.refresh()
    due(mine)
    upstream.refresh()
    handle = upstream.table
    assert handle is not None
    shutil.rmtree(mine.path)
    if what == "older":
        shutil.copytree(tmp_path / "of then", mine.path)
    if what == "another":
        commit(writer(tmp_path), 2 * INTERVAL)
    assert upstream._followed is not None
    # As if it were replaced between the comparison of the logs and the look.
    with suppress(DeltaError):
        upstream._followed.refresh()
    assert upstream.table is handle
    with pytest.raises(Refused, match="was deleted, recreated or rolled back while it was read"):
        upstream.refresh()
    with pytest.raises((Fenced, TableNotFoundError), match=r"was deleted, recreated or rolled back|does not exist"):
        commit(mine)


def test_delta_rs_writes_a_checkpoint_every_hundred_commits(tmp_path: Path) -> None:
    mine = DeltaWriter(str(tmp_path), Table.ACCOUNTS, "joins", 1)
    while mine.table.version() < COMMITS_PER_CHECKPOINT:
        mine.commit(ACCOUNTS.empty_table(), {})
    assert checkpoints(tmp_path) == [COMMITS_PER_CHECKPOINT - 1]
    handle = mine.table
    mine.commit(ACCOUNTS.empty_table(), {})
    assert mine.table is not handle
    mine.commit(ACCOUNTS.empty_table(), {})
    assert mine._followed.commits_followed == 2
