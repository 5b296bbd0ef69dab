"""`weir compact` leaves a table alone that is not the one its readers have read: a person may yet put that one back.

Real tables and a real database. Every file is older than replaced files are kept, so what the log does not name goes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cli.compact import compact
from cli.output import Format
from deployment.errors import CannotRun
from jobs.runtime.delta.position import Position, transactions_of
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Refused
from jobs.streams import SCHEMAS, USAGE, Table
from tests.database_rows import write
from tests.streaming.journals import START, Journal, heartbeat

EIGHT_DAYS_S = 8 * 86_400
Reads = Callable[[Path, str, Position], None]


def sessionization(_: Path, database: str, at: Position) -> None:
    """Its position as a batch stores it."""
    said = {"next_position": at.next_lsn, "input_table": at.table, "row_before": at.row}
    write(database, "positions", {"job": "sessionization", "input": "journal", **said})


def joins(tables: Path, _: str, at: Position, made: Table = Table.USAGE) -> None:
    """Its position, in a table that it makes of the journal."""
    writer = DeltaWriter(str(tables), made, "joins", 1)
    writer.commit(SCHEMAS[made].empty_table(), {**transactions_of(Table.JOURNAL, at), LSN: writer.next_lsn})


def joins_for_prices(tables: Path, database: str, at: Position) -> None:
    """It has taken the catalog's changes, and ended before it wrote usage."""
    joins(tables, database, at, Table.PRICES)


READERS: list[Reads] = [sessionization, joins, joins_for_prices]


@pytest.fixture
def run(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The command, as a pod runs it; all files are eight days old."""
    for name, value in {"TABLES": tmp_path, "POSTGRES_URL": database, "KAFKA_BOOTSTRAP": "none"}.items():
        monkeypatch.setenv(f"WEIR_{name}", str(value))

    def run() -> None:
        for file in tmp_path.rglob("log_date=*/*.parquet"):
            os.utime(file, times=(time.time() - EIGHT_DAYS_S,) * 2)
        compact(form=Format.JSON)

    return run


def journal_of(tables: Path, commits: int = 6, offset: int = 0, epoch: int = 1) -> Journal:
    journal = Journal(tables, epoch)
    for number in range(commits):
        journal.commit([{**heartbeat(number), "offset": offset + number}])
    return journal


def position(tables: Path, next_lsn: int) -> Position:
    """The position that a reader would hold now."""
    upstream = Upstream(str(tables), Table.JOURNAL)
    upstream.refresh()
    return upstream.verified("job", Position(next_lsn))


def lsns(tables: Path, table: Table = Table.JOURNAL) -> list[int]:
    return sorted(DeltaTable(f"{tables}/{table}").to_pyarrow_table()["lsn"].to_pylist())


def rolled_back(tables: Path, table: Table, commits: int) -> Callable[[], None]:
    """Take the newest commits out of the log; gives what puts the log back as it was."""
    log, kept = tables / table / "_delta_log", tables.parent / f"{tables.name} {table}"
    shutil.copytree(log, kept)
    for commit in sorted(log.glob("*.json"))[-commits:]:
        commit.unlink()

    def put_back() -> None:
        shutil.rmtree(log)
        shutil.copytree(kept, log)

    return put_back


def files(tables: Path) -> set[Path]:
    return {file for file in tables.rglob("*") if file.is_file()}


def refuses(run: Callable[[], None], tables: Path, why: str) -> None:
    """It says so, and no table has a file more or less."""
    before = files(tables)
    with pytest.raises(Refused, match=f"nothing was compacted: .*{why}"):
        run()
    assert files(tables) == before


@pytest.mark.parametrize("reads", READERS)
def test_files_of_lost_commits_exist_when_the_log_is_restored(
    run: Callable[[], None], tmp_path: Path, database: str, reads: Reads
) -> None:
    journal_of(tmp_path)
    reads(tmp_path, database, position(tmp_path, 7))
    put_back = rolled_back(tmp_path, Table.JOURNAL, 2)
    refuses(run, tmp_path, "up to lsn 6, but .* ends before lsn 5: .* restore the newer journal")
    put_back()
    assert lsns(tmp_path) == [1, 2, 3, 4, 5, 6]
    run()
    assert lsns(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("reads", READERS)
def test_a_journal_that_was_rolled_back_and_has_grown_since_is_left_alone(
    run: Callable[[], None], tmp_path: Path, database: str, reads: Reads
) -> None:
    journal_of(tmp_path)
    reads(tmp_path, database, position(tmp_path, 7))
    put_back = rolled_back(tmp_path, Table.JOURNAL, 2)
    journal_of(tmp_path, offset=100, epoch=2)
    refuses(run, tmp_path, "another row there: it was rolled back and has grown since")
    put_back()
    assert lsns(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("reads", READERS)
def test_a_journal_that_was_recreated_in_its_folder_is_left_alone(
    run: Callable[[], None], tmp_path: Path, database: str, reads: Reads
) -> None:
    journal_of(tmp_path)
    reads(tmp_path, database, position(tmp_path, 7))
    put_back = rolled_back(tmp_path, Table.JOURNAL, 99)
    journal_of(tmp_path, 9)
    refuses(run, tmp_path, "but of another table")
    put_back()
    assert lsns(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_tables_that_were_rolled_back_together_are_not_compacted(
    run: Callable[[], None], tmp_path: Path, database: str
) -> None:
    """Sessionization may be switched off: then only billing's position in usage says what became of the journal."""
    journal_of(tmp_path)
    writer = DeltaWriter(str(tmp_path), Table.USAGE, "joins", 1)
    for next_lsn in (4, 7):
        moved = transactions_of(Table.JOURNAL, position(tmp_path, next_lsn))
        writer.commit(USAGE.empty_table(), {**moved, LSN: next_lsn})
    write(database, "positions", {"job": "billing", "input": "usage", "next_position": 7})
    put_back = [rolled_back(tmp_path, table, commits) for table, commits in ((Table.JOURNAL, 2), (Table.USAGE, 1))]
    refuses(run, tmp_path, "billing has read usage up to lsn 6, but .* ends before lsn 4")
    for put in put_back:
        put()
    assert lsns(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_nothing_is_compacted_while_the_database_is_unavailable(
    run: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_of(tmp_path)
    before = files(tmp_path)
    monkeypatch.setenv("WEIR_POSTGRES_URL", "postgresql://weir@127.0.0.1:1/weir")
    with pytest.raises(CannotRun, match="does not answer"):
        run()
    assert files(tmp_path) == before


def test_an_unread_journal_is_compacted(run: Callable[[], None], tmp_path: Path) -> None:
    journal_of(tmp_path)
    run()
    assert len(DeltaTable(f"{tmp_path}/{Table.JOURNAL}").file_uris()) == 1


@pytest.mark.parametrize("next_lsn", [1, 3, 7])
@pytest.mark.parametrize("identity", ["known", "of an older version"])
def test_a_compacted_journal_keeps_its_identity(
    run: Callable[[], None], tmp_path: Path, database: str, identity: str, next_lsn: int
) -> None:
    journal_of(tmp_path)
    at = position(tmp_path, next_lsn) if identity == "known" else Position(next_lsn)
    for reads in READERS:
        reads(tmp_path, database, at)
    for _ in range(2):
        run()
        assert len(list((tmp_path / Table.JOURNAL / f"log_date={START.date()}").glob("*.parquet"))) in (1, 7)
    assert lsns(tmp_path) == [1, 2, 3, 4, 5, 6]
