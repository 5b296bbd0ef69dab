"""New rows of a table, read on the driver: a few rows, or a whole batch.

For a few rows Spark needs longer to plan than to read. A whole batch is read here if a job wants the rows unchanged:
Spark would turn the columns into rows, and the rows into columns again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from jobs.runtime.delta.known_commit import actions_of, store_that_is_there

VALUE = "value"
"""The column of what a record said."""
CATALOG = "catalog."


@dataclass(frozen=True)
class TableLimits:
    """What the driver reads at once: beyond any of these rows are for Spark."""

    rows: int = 1_000
    rows_of_one: int = 0
    """Of a single commit, which nobody can cut, if that may have more."""
    file_bytes: int = 1 << 20
    """A file is held as it is stored while its columns are read."""
    commits: int = 20
    value_bytes: int = 8 << 20
    """Of what changes of the catalog say."""


@dataclass(frozen=True)
class Added:
    """The rows that commits up to `version` added, by lsn; None where none of them added any."""

    rows: pa.Table | None
    version: int


@dataclass(frozen=True)
class File:
    """A file of a commit: where it is, its bytes and rows, and the highest lsn, if statistics have it."""

    path: str
    size: int
    rows: int
    last_lsn: int | None


@dataclass(frozen=True)
class Listed:
    """The files that commits up to `version` added."""

    files: tuple[File, ...]
    version: int

    @property
    def rows(self) -> int:
        """How many they have."""
        return sum(file.rows for file in self.files)

    @property
    def next_lsn(self) -> int | None:
        """The lsn after their last row; None where it is not known."""
        known = [file.last_lsn for file in self.files if file.last_lsn is not None]
        return 1 + max(known) if known and len(known) == len(self.files) else None


class DriverRows:
    """Reads what the commits of one table added."""

    def __init__(self, path: str, columns: Iterable[str], few: TableLimits = TableLimits()) -> None:
        self._path = path
        self._most = few
        self._columns = tuple(columns)

    @cached_property
    def _store(self) -> ObjectStore:
        """Looked for when something is read: a table may be made after its reader has started."""
        return store_that_is_there(self._path)

    def added(self, versions: range) -> pa.Table | None:
        """The rows that all these commits added, by lsn; None where that is for Spark to read, or nothing.

        That is: they are many or large, a commit is not in the log any more, or it changed the table. As in Spark's
        stream (`skipChangeCommits`), a commit that removed rows adds none.
        """
        if len(versions) > self._most.commits:
            return None
        found = self.first(versions)
        return found.rows if found is not None and found.version == versions[-1] else None

    def first(self, versions: range) -> Added | None:
        """What as many of these commits added, from the first on, as can be read at once; None where none can be."""
        listed = self.listed(versions, self._most)
        if listed is None:
            return None
        try:
            tables = [self._read(file.path) for file in listed.files]
        except (FileNotFoundError, _Changed):
            return None
        return Added(pa.concat_tables(tables).combine_chunks() if tables else None, listed.version)

    def listed(self, versions: range, most: TableLimits) -> Listed | None:
        """The files that as many of these commits added, from the first on, as `most` allows; None where none can be.

        They are not read: so their columns are not known.
        """
        files: list[File] = []
        rows, size, last = 0, 0, None
        try:
            for version in versions[: most.commits]:
                added = [*self._files(version)]
                rows, size = rows + sum(part.rows for part in added), size + sum(part.size for part in added)
                max_rows = most.rows if files else max(most.rows, most.rows_of_one)
                if rows > max_rows or size > most.file_bytes:
                    break
                files, last = [*files, *added], version
        except (FileNotFoundError, _Changed):
            return None
        return None if last is None else Listed(tuple(files), last)

    def _files(self, version: int) -> Iterator[File]:
        """Each file that a commit added. Raises `_Changed` where it did something else, or the rows are not counted."""
        actions = actions_of(self._store, version)
        if any(action.get("remove", {}).get("dataChange") for action in actions):
            return
        for action in actions:
            if "metaData" in action or "protocol" in action:
                raise _Changed
            added = action.get("add")
            if added is not None and added["dataChange"]:
                statistics = json.loads(added.get("stats") or "{}")
                rows = statistics.get("numRecords")
                if added.get("deletionVector") or rows is None:
                    raise _Changed
                yield File(unquote(added["path"]), added["size"], rows, statistics.get("maxValues", {}).get("lsn"))

    def _read(self, path: str) -> pa.Table:
        file = pq.ParquetFile(pa.BufferReader(obstore.get(self._store, path).bytes()))
        if not set(self._columns) <= set(file.schema_arrow.names):
            # Of a version that lacked some, or one that the table is partitioned by.
            raise _Changed
        rows = file.read(columns=[name for name in self._columns if name != VALUE])
        if VALUE in self._columns:
            rows = rows.append_column(VALUE, _values_of_changes(file, self._most.value_bytes))
        return rows.select(list(self._columns))


def _values_of_changes(file: pq.ParquetFile, max_bytes: int) -> pa.ChunkedArray:
    """The values of catalog changes; null for events, whose values are not read. Raises `_Changed` for too many.

    Read in small pieces, because a file of a few kilobytes may hold gigabytes of repeated bytes.
    """
    topics = file.read(columns=["topic"])["topic"]
    if not pc.any(pc.starts_with(topics, CATALOG)).as_py():
        return pa.chunked_array([pa.nulls(len(topics), pa.binary())])
    values, size = [pa.nulls(0, pa.binary())], 0
    for part in file.iter_batches(batch_size=16, columns=["topic", VALUE]):
        is_change = pc.starts_with(part["topic"], CATALOG)
        values.append(pc.if_else(is_change, part[VALUE], pa.scalar(None, pa.binary())))
        size += pc.sum(pc.binary_length(values[-1])).as_py() or 0
        if size > max_bytes:
            raise _Changed
    return pa.chunked_array(values, pa.binary())


class _Changed(Exception):
    """A commit does more than add a few rows with the present columns."""
