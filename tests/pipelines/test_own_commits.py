"""A driver's own commit: it reads nothing of the table, and is refused wherever one of delta-rs would be."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import obstore
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs.runtime.delta import new_files, own_commit, table
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.followed import CHECKPOINT_INTERVAL, FollowedTable
from jobs.runtime.delta.known_commit import KnownCommit
from jobs.runtime.delta.live_files import LiveFiles, files_of
from jobs.runtime.delta.object_store import store_of
from jobs.runtime.delta.table import KNOWN_SECONDS, LSN, MAX_PUTS, DeltaWriter, committing
from jobs.runtime.errors import Fenced, Outrun, Refused
from jobs.streams import USAGE, Table

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
INTERVAL = 10
POSITION = "journal"


def usage(lsn: int, count: int = 1, at: datetime = NOW) -> pa.Table:
    return pa.Table.from_pylist([{f.name: value(f, lsn + n, at) for f in USAGE} for n in range(count)], schema=USAGE)


def value(field: pa.Field, lsn: int, at: datetime) -> object:
    if field.name in ("lsn", "log_date", "logged_at"):
        return {"lsn": lsn, "log_date": at.date(), "logged_at": at}[field.name]
    if field.nullable:
        return None
    if pa.types.is_timestamp(field.type):
        return at
    return at.date() if pa.types.is_date(field.type) else "" if pa.types.is_string(field.type) else 0


def driver(tables: Path, epoch: int = 1) -> DeltaWriter:
    """joins', of a table that has a checkpoint every ten commits."""
    path, settings = f"{tables}/{Table.USAGE}", {CHECKPOINT_INTERVAL: str(INTERVAL)}
    DeltaTable.create(path, USAGE, mode="ignore", partition_by=["log_date"], configuration=settings)
    found = DeltaWriter(str(tables), Table.USAGE, "joins", epoch)
    found.watch(POSITION)
    return found


def commit(by: DeltaWriter, count: int = 1, at: datetime = NOW) -> None:
    """Append rows, and move the position by as many."""
    by.commit(usage(by.next_lsn, count, at), moved(by, count))


def moved(by: DeltaWriter, count: int = 1) -> dict[str, int]:
    return {LSN: by.next_lsn + count, POSITION: (by.known[POSITION] or 0) + count}


def lsns(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table(columns=["lsn"])["lsn"].to_pylist())


def log(path: str) -> list[int]:
    return sorted(int(file.stem) for file in Path(path, "_delta_log").glob("*.json"))


def others_rows(path: str, count: int = 1) -> None:
    """As the audit appends: its rows take the next lsns, and nothing else moves."""
    found = DeltaTable(path)
    next_lsn = found.transaction_version(LSN) or 1
    moved = committing({LSN: next_lsn + count})
    write_deltalake(found, usage(next_lsn, count), mode="append", commit_properties=moved)


def copied(one: DeltaWriter) -> DeltaWriter:
    """The same driver once more, as a machine that was copied while it ran has it."""
    other, held = DeltaWriter.__new__(DeltaWriter), KnownCommit(one.path)
    held.hold_version(one.table.version())
    handle = FollowedTable(DeltaTable(one.path))
    other.__dict__.update(one.__dict__, known=dict(one.known), _followed=handle, _held=held)
    return other


@contextmanager
def looks() -> Iterator[list[str]]:
    """Which calls of delta-rs read a table meanwhile."""
    found: list[str] = []
    names = ("__init__", "update_incremental", "get_add_actions", "create_write_transaction", "to_pyarrow_dataset")

    def noting(name: str, perform: Callable[..., Any]) -> Callable[..., Any]:
        def performed(*args: Any, **more: Any) -> Any:
            found.append(name)
            return perform(*args, **more)

        return performed

    with pytest.MonkeyPatch.context() as patching:
        for name in names:
            patching.setattr(deltalake.DeltaTable, name, noting(name, getattr(deltalake.DeltaTable, name)))
        patching.setattr(table, "write_deltalake", noting("write", write_deltalake))
        yield found


def test_a_commit_reads_nothing_of_the_table_but_where_a_checkpoint_is_due(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    seen = {}
    for _ in range(3 * INTERVAL):
        with looks() as found:
            commit(mine)
        if found:
            seen[log(mine.path)[-1]] = found
    due = [number for number in log(mine.path)[4:] if number % INTERVAL == INTERVAL - 1]
    assert seen == {number: ["__init__"] for number in due}
    checkpoints = [int(file.name[:20]) for file in Path(mine.path, "_delta_log").glob("*.checkpoint.parquet")]
    assert {*due} <= {*checkpoints}
    assert mine.table.version() == log(mine.path)[-1]
    assert lsns(mine.path) == list(range(1, mine.next_lsn))


def test_files_of_tasks_and_commits_without_rows_read_nothing_either(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    files = [mine.folder.write(usage(mine.next_lsn + n), NOW, mine.statistics) for n in range(2)]
    with looks() as found:
        mine.commit_files(files, moved(mine, 2))
        mine.commit(USAGE.empty_table(), {POSITION: 9})
    assert found == []
    assert lsns(mine.path) == [1, 2, 3]
    assert DeltaTable(mine.path).transaction_version(POSITION) == 9


def test_the_store_is_opened_once_by_the_driver_and_once_by_each_who_gets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = driver(tmp_path)
    opened: list[str] = []

    def opening(path: str, *args: Any) -> Any:
        opened.append(path)
        return store_of(path, *args)

    monkeypatch.setattr(new_files, "store_of", opening)
    for _ in range(3):
        commit(mine)
    mine.folder.remove(["a file that is gone"])
    assert opened == [mine.path]
    sent = pickle.loads(pickle.dumps(mine.folder))
    assert sent == mine.folder
    mine.commit_files([sent.write(usage(mine.next_lsn + n), NOW, mine.statistics) for n in range(2)], moved(mine, 2))
    assert opened == [mine.path] * 2
    assert lsns(mine.path) == [1, 2, 3, 4, 5]


def test_the_log_says_of_an_own_commit_what_it_says_of_one_of_delta_rs(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    live = LiveFiles(mine.path, (LSN, POSITION))
    live.read(mine.table)
    entries = []
    for is_own in (True, False):
        mine._own_commits = is_own
        commit(mine, 3)
        text = Path(mine.path, "_delta_log", f"{log(mine.path)[-1]:020d}.json").read_text()
        entries.append([json.loads(line) for line in text.splitlines()])
        assert live.follow(), "whoever follows commit by commit can read it"
        assert live.transactions == {LSN: mine.next_lsn, POSITION: mine.known[POSITION]}
    assert live.files.equals(files_of(DeltaTable(mine.path)))
    (head, add, *of_own), (of_other, *_) = entries[0], [entries[1][1:]]
    assert [*head] == ["commitInfo"]
    assert {name for name, value in of_other[0]["add"].items() if value is not None} == {*add["add"]}
    assert [[*action] for action in of_own] == [["txn"]] * 3 == [[*action] for action in of_other[1:]]
    assert {a["txn"]["appId"] for a in of_own} == {a["txn"]["appId"] for a in of_other[1:]}


def test_a_driver_that_was_replaced_is_fenced_by_the_version_that_its_successor_made(tmp_path: Path) -> None:
    old = driver(tmp_path)
    commit(old)
    driver(tmp_path, 2)
    before = log(old.path)
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        commit(old)
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        commit(old)
    assert log(old.path) == before


def test_of_two_copies_of_a_driver_one_commits(tmp_path: Path) -> None:
    one = driver(tmp_path)
    commit(one)
    other = copied(one)
    commit(one)
    with pytest.raises(Fenced, match="lsn is at 3, this driver left it at 2"):
        commit(other)
    assert lsns(one.path) == [1, 2]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = driver(tmp_path)
    commit(mine)
    put = own_commit.put_commit

    def unanswered(*args: Any) -> bool:
        put(*args)
        raise CommitFailedError("the answer was lost")

    with monkeypatch.context() as patching:
        patching.setattr(table, "put_commit", unanswered)
        with pytest.raises(CommitFailedError):
            commit(mine)
    with pytest.raises(Fenced):
        mine.append(lambda lsn: (usage(lsn), moved(mine)))
    assert lsns(mine.path) == [1, 2]


@pytest.mark.parametrize("of_others", [0, 2])
def test_a_checkpoint_that_fails_after_its_commit_has_no_row_committed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_others: int
) -> None:
    """Also where others append before it fails: the table goes on then, but not because the commit was lost."""
    mine = driver(tmp_path)
    while (log(mine.path)[-1] + 2) % INTERVAL:
        commit(mine)
    next_lsn = mine.next_lsn

    def failing(_: FollowedTable) -> None:
        if of_others:
            others_rows(mine.path, of_others)
        raise CommitFailedError("the store is away")

    with monkeypatch.context() as patching:
        patching.setattr(FollowedTable, "write_checkpoint", failing)
        with pytest.raises(CommitFailedError):
            append(mine, [NOW])
    assert lsns(mine.path) == list(range(1, next_lsn + 1 + of_others))


def test_a_position_that_others_moved_since_ends_the_driver(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    stranger = DeltaTable(mine.path)
    write_deltalake(stranger, USAGE.empty_table(), mode="append", commit_properties=committing({POSITION: 5}))
    with pytest.raises(Fenced, match="journal is at 5, this driver left it at 1"):
        commit(mine)
    assert lsns(mine.path) == [1]


@pytest.mark.parametrize("tomorrow", [None, NOW + timedelta(days=1)])
def test_rows_that_others_appended_since_give_the_next_ones_other_numbers(
    tmp_path: Path, tomorrow: datetime | None
) -> None:
    """Also those of two log dates, whose commit is delta-rs's and goes on from the version that it has read."""
    mine = driver(tmp_path)
    commit(mine)
    others_rows(mine.path, 3)

    def rows(lsn: int) -> pa.Table:
        return usage(lsn) if tomorrow is None else pa.concat_tables([usage(lsn), usage(lsn + 1, 1, tomorrow)])

    with pytest.raises(Outrun, match="goes on at lsn 5, this driver left it at 2"):
        mine.commit(rows(mine.next_lsn), moved(mine))
    count = len(rows(1))
    mine.append(lambda lsn: (rows(lsn), moved(mine, count)))
    assert lsns(mine.path) == list(range(1, 5 + count))
    commit(mine)
    assert lsns(mine.path) == list(range(1, 6 + count))


def test_what_reads_the_table_meanwhile_hides_no_rows_of_others_from_a_commit(tmp_path: Path) -> None:
    """The handle has them by then; whether the driver knows them is another question."""
    mine = driver(tmp_path)
    commit(mine)
    others_rows(mine.path)
    mine._followed.refresh()
    assert mine.table.transaction_version(LSN) == 3
    for rows in (usage(2), pa.concat_tables([usage(2), usage(3, 1, NOW + timedelta(days=1))])):
        with pytest.raises(Outrun):
            mine.commit(rows, moved(mine))
        mine.known[LSN] = 2
        mine._at = None
    assert lsns(mine.path) == [1, 2]


def test_a_compaction_between_two_commits_is_no_conflict(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    for _ in range(3):
        commit(mine)
    compact(str(tmp_path), Table.USAGE, before=NOW.date() + timedelta(days=1), keep=timedelta(days=7))
    commit(mine)
    assert lsns(mine.path) == [1, 2, 3, 4]
    with looks() as found:
        commit(mine)
    assert found == []


def test_commits_meanwhile_are_no_conflict_to_a_compaction(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    for _ in range(3):
        commit(mine)
    compacting = DeltaTable(mine.path)
    commit(mine)
    assert compacting.optimize.compact()["numFilesRemoved"] == 3
    commit(mine)
    assert lsns(mine.path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("what", ["older", "another"])
def test_a_log_that_was_put_back_or_made_again_takes_no_commit(tmp_path: Path, what: str) -> None:
    mine = driver(tmp_path)
    commit(mine)
    shutil.copytree(mine.path, tmp_path / "of then")
    commit(mine)
    shutil.rmtree(mine.path)
    if what == "older":
        shutil.copytree(tmp_path / "of then", mine.path)
    else:
        stranger = driver(tmp_path)
        for _ in range(3):
            commit(stranger)
    before = log(mine.path)
    with pytest.raises(Fenced, match="was deleted, recreated or rolled back"):
        commit(mine)
    assert log(mine.path) == before


def test_who_slept_until_the_log_was_cleaned_up_commits_nothing_in_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that its successor made next may be gone from the log, and so free, when it wakes up."""
    zombie = driver(tmp_path)
    commit(zombie)
    free = log(zombie.path)[-1] + 1
    successor = driver(tmp_path, 2)
    for _ in range(INTERVAL):
        commit(successor)
    Path(zombie.path, "_delta_log", f"{free:020d}.json").unlink()
    slept = time.monotonic() + KNOWN_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: slept)
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        commit(zombie)
    assert free not in log(zombie.path)


def test_a_commit_that_expired_ends_no_driver_that_has_seen_later_ones(tmp_path: Path) -> None:
    """After hours without a commit of its own, a batch that first reads the table: a compaction has cut the log."""
    mine = driver(tmp_path)
    for _ in range(3):
        commit(mine)
    last = log(mine.path)[-1]
    compact(str(tmp_path), Table.USAGE, before=NOW.date() + timedelta(days=1), keep=timedelta(days=7))
    assert log(mine.path)[-1] > last
    Path(mine.path, "_delta_log", f"{last:020d}.json").unlink()
    assert mine.table.version() == log(mine.path)[-1]
    commit(mine)
    assert lsns(mine.path) == [1, 2, 3, 4]


def test_a_table_that_was_copied_without_its_partitions_is_refused(tmp_path: Path) -> None:
    """A file says its log date by its partition alone: rows of this table would have none."""
    DeltaTable.create(f"{tmp_path}/{Table.USAGE}", USAGE)
    with pytest.raises(Refused, match="is not partitioned by log_date"):
        driver(tmp_path)
    assert log(f"{tmp_path}/{Table.USAGE}") == [0]


def test_a_table_with_constraints_is_delta_rs_to_write(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    DeltaTable(mine.path).alter.add_constraint({"few": "lsn < 3"})
    commit(mine)
    with pytest.raises(DeltaError, match="failed validation"):
        commit(mine)
    assert lsns(mine.path) == [1, 2]


def test_an_unavailable_store_leaves_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = driver(tmp_path)
    commit(mine)
    put = obstore.put

    def failing(store: Any, path: str, *args: Any, **more: Any) -> Any:
        if path.startswith("_delta_log"):
            raise obstore.exceptions.GenericError("Server returned error status code: 503")
        return put(store, path, *args, **more)

    with monkeypatch.context() as patching:
        patching.setattr(obstore, "put", failing)
        with pytest.raises(obstore.exceptions.GenericError):
            commit(mine)
    assert lsns(mine.path) == [1]


@contextmanager
def denying(times: int) -> Iterator[None]:
    """Meanwhile the store says so many times of a new commit that it is there already, and keeps none of these."""
    put, left = obstore.put, [times]

    def denied(store: Any, path: str, *args: Any, **more: Any) -> Any:
        if path.startswith("_delta_log") and left[0]:
            left[0] -= 1
            raise obstore.exceptions.AlreadyExistsError("409 ConditionalRequestConflict")
        return put(store, path, *args, **more)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(obstore, "put", denied)
        yield


def test_a_version_that_the_store_denies_and_its_log_does_not_show_is_tried_again(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    with denying(3):
        commit(mine)
    assert lsns(mine.path) == [1, 2]


def test_a_store_that_denies_every_version_fails_the_commit_and_not_what_follows(tmp_path: Path) -> None:
    mine = driver(tmp_path)
    commit(mine)
    with denying(MAX_PUTS), pytest.raises(CommitFailedError, match="the next version is there already; the newest"):
        append(mine, [NOW])
    assert lsns(mine.path) == [1]
    commit(mine)
    assert lsns(mine.path) == [1, 2]


TURNS = ("commit", "commit", "files", "two days", "others", "compact", "replace", "read", "zombie")


@pytest.mark.parametrize("seed", range(6))
def test_whoever_commits_beside_a_driver_each_row_has_one_lsn(tmp_path: Path, seed: int) -> None:
    """Random turns of a driver, its successors, whoever appends, and compactions: lsns have no hole and no double,
    and the position counts the driver's rows.
    """
    chance, mine, appended, others = random.Random(seed), driver(tmp_path), 0, 0
    zombies: list[DeltaWriter] = []
    for epoch in range(2, 47):
        match chance.choice(TURNS):
            case "commit" | "two days" as kind:
                at = [NOW, NOW + timedelta(days=1)] if kind == "two days" else [NOW] * chance.randint(1, 3)
                append(mine, at)
                appended += len(at)
            case "files":
                append_files(mine)
                appended += 2
            case "others":
                others_rows(mine.path, 2)
                others += 2
            case "compact":
                compact(str(tmp_path), Table.USAGE, before=NOW.date() + timedelta(days=1), keep=timedelta(days=7))
            case "replace":
                zombies.append(mine)
                mine = driver(tmp_path, epoch)
            case "read":
                assert mine.table.transaction_version(POSITION) in (None, appended)
            case "zombie" if zombies:
                with pytest.raises(Fenced):
                    append(chance.choice(zombies), [NOW])
    assert lsns(mine.path) == list(range(1, appended + others + 1))
    assert (DeltaTable(mine.path).transaction_version(POSITION) or 0) == appended
    assert pl.read_delta(mine.path)["lsn"].sort().to_list() == lsns(mine.path)


def append(by: DeltaWriter, instants: list[datetime]) -> None:
    """Rows that were logged then, after those of others."""

    def made(lsn: int) -> tuple[pa.Table, Mapping[str, int]]:
        rows = [usage(lsn + number, 1, at) for number, at in enumerate(instants)]
        return pa.concat_tables(rows), moved(by, len(instants))

    by.append(made)


def append_files(by: DeltaWriter) -> None:
    """Two files of a row each."""
    by.append_files(lambda lsn: ([by.folder.write(usage(lsn + n), NOW, by.statistics) for n in range(2)], moved(by, 2)))
