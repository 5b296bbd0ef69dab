"""`python -m bench.log_files`: what the age of a Delta log costs, in CPU-ms: a look, a commit, and its clean-up.

The log is made: one commit's file under many numbers, a checkpoint below the newest. A commit every five seconds leaves
17,280 files a day; 100,000 are six days.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from deltalake import write_deltalake
from rich.console import Console
from rich.table import Table as Lines

from jobs.runtime.delta.log_cleanup import clean_log
from jobs.runtime.delta.table import LSN, DeltaWriter, committing
from jobs.streams import ACCOUNTS, Table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LINKS_PER_FILE = 60_000


def main(
    files: Annotated[str, typer.Option(help="How many log files, by commas.")] = "2000,5000,20000,100000",
    repeats: Annotated[int, typer.Option(help="How often each is measured.", min=1)] = 5,
) -> None:
    """Measure and print."""
    lines = Lines("log files", "look", "commit", "commit with clean-up inside", "clean-up beside it", "commit after it")
    for count in map(int, files.split(",")):
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
            lines.add_row(f"{count:,}", *[f"{ms:.1f}" for ms in measure(Path(folder), count, repeats)])
    Console().print(lines)


def measure(tables: Path, files: int, repeats: int) -> list[float]:
    """CPU-ms of a look, a commit as it is, one with delta-rs's default clean-up, a clean-up, and a commit after it."""
    writer = aged(tables, files)
    look = cpu_ms(writer.table.update_incremental, repeats)
    as_it_is = cpu_ms(lambda: commit(writer), repeats)
    inside = cpu_ms(lambda: commit_and_clean(writer), repeats)
    newest = max((tables / Table.ACCOUNTS / "_delta_log").glob("*.json"))
    long_ago = time.time() - 86_400
    for file in {*newest.parent.iterdir()} - {newest}:
        os.utime(file, (long_ago, long_ago))
    beside = cpu_ms(lambda: clean_log(str(tables), Table.ACCOUNTS), 1)
    return [look, as_it_is, inside, beside, cpu_ms(lambda: commit(writer), repeats)]


def aged(tables: Path, files: int) -> DeltaWriter:
    """A writer on a table whose newest version has the number `files`, and whose older commits are all still there."""
    DeltaWriter(str(tables), Table.ACCOUNTS, "bench", 1).table.create_checkpoint()
    log = tables / Table.ACCOUNTS / "_delta_log"
    last = json.loads((log / "_last_checkpoint").read_text())
    (log / f"{last['version']:020d}.checkpoint.parquet").rename(log / f"{files:020d}.checkpoint.parquet")
    commits = sorted(log.glob("*.json"))
    text = commits[-1].read_text()
    for old in commits:
        old.unlink()
    last["version"] = files
    last.pop("checksum", None)
    (log / "_last_checkpoint").write_text(json.dumps(last))
    for number in range(files + 1):
        if number % LINKS_PER_FILE == 0:
            (linked := log / f"{number:020d}.json").write_text(text)
        else:
            os.link(linked, log / f"{number:020d}.json")
    return DeltaWriter(str(tables), Table.ACCOUNTS, "bench", 2)


def rows(lsn: int) -> pa.Table:
    """One version of an account."""
    row = {"lsn": lsn, "account": "a", "effective_from": NOW, "deleted": False}
    return pa.Table.from_pylist([row], schema=ACCOUNTS)


def commit(writer: DeltaWriter) -> None:
    """As a driver commits."""
    writer.commit(rows(writer.next_lsn), {LSN: writer.next_lsn + 1})


def commit_and_clean(writer: DeltaWriter) -> None:
    """As delta-rs commits by default."""
    lsn = writer.next_lsn
    properties = committing({LSN: lsn + 1})
    write_deltalake(writer.table, rows(lsn), mode="append", commit_properties=properties)
    writer.known[LSN] = lsn + 1
    writer._held.hold(writer.table)


def cpu_ms(act: Callable[[], object], repeats: int) -> float:
    """Mean CPU-milliseconds of this process."""
    before = _cpu_seconds()
    for _ in range(repeats):
        act()
    return (_cpu_seconds() - before) / repeats * 1000


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    typer.run(main)
