"""Maintenance of a Delta table: merges the many small files of past days, and removes files that nobody reads.

A commit every few seconds makes 17,000 files a day, and every start of a driver reads their statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from deltalake import DeltaTable

from jobs.runtime.delta.parquet import OF_MANY_ROWS
from jobs.runtime.delta.table import open_to_change
from jobs.streams import Table

FILE_BYTES = 128 << 20
"""About what a reader takes in one go."""
UNCOMMITTED = timedelta(days=1)
"""So long at least stays a file that no log names: a batch that runs may still commit or read it."""


@dataclass(frozen=True)
class Compaction:
    """What was done to one table: live files before and after, and files deleted that were replaced long ago."""

    table: Table
    files_before: int
    files_after: int
    files_deleted: int


def compact(tables: str, table: Table, *, before: date, keep: timedelta) -> Compaction | None:
    """Merge the files of each log date before `before`; delete what was replaced more than `keep` ago.

    Changes no row and no transaction, so a job may write meanwhile, and its streams pass over the commit
    (`skipChangeCommits`). A reader that lags by more than `keep` would miss its files. (At most a week: so long a log
    says when a file was replaced; of older ones the store says only when they were written.) A file that no log names
    goes, too, `keep` after it was written, but not within a day: a running batch may still commit or read it
    (`new_files`). So would one whose commit was rolled back: `refuse_tables_not_read` comes before this.

    None when there is no such table, or when it has no log dates and is too small to need it: then only its log is
    cleaned. Raises Refused for a table that a newer version writes.
    """
    found = open_to_change(tables, table)
    if found is None:
        return None
    if "log_date" not in found.metadata().partition_columns:
        _cut_log(found)
        return None
    live = len(found.file_uris())
    days = {action["log_date"] for action in found.partitions()}
    for day in sorted(day for day in days if date.fromisoformat(day) < before):
        found.optimize.compact(
            partition_filters=[("log_date", "=", day)], target_size=FILE_BYTES, writer_properties=OF_MANY_ROWS
        )
    deleted = _delete(found, keep, full=False)
    # By what the store lists, too: after a week the log has forgotten what was replaced, mostly before this looks.
    deleted += _delete(found, max(keep, UNCOMMITTED), full=True)
    _cut_log(found)
    return Compaction(table, live, len(found.file_uris()), deleted)


def _delete(table: DeltaTable, keep: timedelta, *, full: bool) -> int:
    """How many files went that were replaced so long ago; `full`: or that no log names, and are as old."""
    hours = int(keep / timedelta(hours=1))
    return len(table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full))


def _cut_log(table: DeltaTable) -> None:
    """What has expired goes, up to the newest checkpoint that is old enough; the next one can be cut at this one."""
    table.create_checkpoint()
    table.cleanup_metadata()
