"""A version of a table in pieces, each read by one task: rows that bypass Java cost half."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.worker_garbage import exempt_imports

ROWS_PER_TASK = 200_000
BATCH_ROWS = 50_000
LOG_DATE = "log_date"
LSN = "lsn"
Made = Callable[[pa.Table], Iterable[pa.RecordBatch]]
Parts = Callable[[Iterator[pa.Table]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Wanted:
    """Which rows are read whole: few, so of all others only these columns are looked at."""

    columns: tuple[str, ...]
    is_wanted: Callable[[pl.DataFrame], pl.Series]


@dataclass(frozen=True)
class Piece:
    """One of the `parts` of a file, by its row groups."""

    path: str
    part: int
    parts: int


@dataclass(frozen=True)
class Pieces:
    """Files of one table: where they are, what is read of them, and who reads which."""

    uri: str
    options: dict[str, str] | None
    schema: pa.Schema
    tasks: Sequence[Sequence[Piece]]
    rows: int
    wanted: Wanted | None = None
    lsns: tuple[int, int | None] | None = None
    """Only rows from the first of these lsns on, before the second."""

    def since(self, first: int) -> Pieces:
        """The rows with an lsn from `first` on."""
        return replace(self, lsns=(first, None if self.lsns is None else self.lsns[1]))

    def read(self) -> pa.Table:
        """All rows, read here."""
        parts = (rows for number in range(len(self.tasks)) for rows in self.of_task(number, BATCH_ROWS))
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def of_task(self, number: int, at_once: int) -> Iterator[pa.Table]:
        """The rows of a task, at most that many at once, with the columns of `schema`; null if a file lacks one."""
        files = PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        for piece in self.tasks[number]:
            with pq.ParquetFile(files.open_input_file(piece.path), pre_buffer=True) as file:
                groups = [
                    n for n in range(file.num_row_groups) if n % piece.parts == piece.part and self._may_hold(file, n)
                ]
                names = [name for name in self.schema.names if name in file.schema_arrow.names]
                if self.wanted is not None:
                    for group in groups:
                        yield from self._wanted_of(file, group, names, at_once)
                    continue
                for batch in file.iter_batches(at_once, groups, names) if groups else ():
                    rows = self._within(_with_schema(pa.Table.from_batches([batch]), self.schema))
                    if len(rows) or self.lsns is None:
                        yield rows

    def _may_hold(self, file: pq.ParquetFile, group: int) -> bool:
        """Whether a row group may have rows of these lsns, by its statistics."""
        if self.lsns is None:
            return True
        column = file.metadata.row_group(group).column(file.schema_arrow.names.index(LSN))
        known = column.statistics if column.path_in_schema == LSN else None
        if known is None or not known.has_min_max:
            return True
        first, end = self.lsns
        return bool(known.max >= first and (end is None or known.min < end))

    def _within(self, rows: pa.Table) -> pa.Table:
        if self.lsns is None:
            return rows
        first, end = self.lsns
        lsn = pc.field(LSN)
        return rows.filter(lsn >= first if end is None else (lsn >= first) & (lsn < end))

    def _wanted_of(self, file: pq.ParquetFile, group: int, names: list[str], at_once: int) -> Iterator[pa.Table]:
        assert self.wanted is not None
        looked = pa.schema([self.schema.field(name) for name in self.wanted.columns if name in self.schema.names])
        rows = file.read_row_group(group, [name for name in looked.names if name in names])
        is_wanted = self.wanted.is_wanted(pl.DataFrame(_with_schema(rows, looked)))
        if not is_wanted.any():
            return
        begin = 0
        for batch in file.iter_batches(at_once, [group], names):
            mask = is_wanted.slice(begin, len(batch)).to_arrow()
            begin += len(batch)
            yield _with_schema(pa.Table.from_batches([batch.filter(mask)]), self.schema)


def pieces(
    table: DeltaTable,
    columns: Iterable[str],
    since: date | None = None,
    before: int | None = None,
    *,
    until: date | None = None,
    wanted: Wanted | None = None,
) -> Pieces:
    """Those of the log dates from `since` on, before `until`, that may have rows below the lsn `before`.

    Of `columns` what the table has; of few rows, where some are `wanted`.
    """
    stored = pa.schema(table.schema().to_arrow())
    schema = pa.schema([stored.field(name) for name in stored.names if name in set(columns)])
    files = pl.DataFrame(table.get_add_actions(flatten=True))
    if len(files) and since is not None:
        files = files.filter(pl.col(f"partition.{LOG_DATE}").cast(pl.Date) >= since)
    if len(files) and until is not None:
        files = files.filter(pl.col(f"partition.{LOG_DATE}").cast(pl.Date) < until)
    if len(files) and before is not None:
        files = files.filter(pl.col("min.lsn").fill_null(0) < before)
    tasks = _tasks(files.select("path", "num_records").iter_rows() if len(files) else ())
    rows = int(files["num_records"].sum()) if len(files) else 0
    return Pieces(table.table_uri, table._storage_options, schema, tasks, rows, wanted)


def pieces_of_lsns(table: DeltaTable, columns: Iterable[str], first: int, end: int) -> Pieces:
    """Rows of this version with an lsn from `first` on, before `end`: those files that may have any, one for a task."""
    files = pl.DataFrame(table.get_add_actions(flatten=True))
    if len(files):
        files = files.filter(
            pl.col("min.lsn").fill_null(first) < end, pl.col("max.lsn").fill_null(first) >= first
        ).sort("min.lsn")
    listed = files.select("path", "num_records").rows() if len(files) else []
    return pieces_of_files(table, columns, listed, first, end)


def pieces_of_files(
    table: DeltaTable, columns: Iterable[str], files: Iterable[tuple[str, int]], first: int, end: int | None = None
) -> Pieces:
    """Rows of these files (path, number of rows) with an lsn from `first` on, before `end`; one file for a task."""
    stored = pa.schema(table.schema().to_arrow())
    schema = pa.schema([stored.field(name) for name in columns])
    listed = [*files]
    tasks = [[Piece(path, 0, 1)] for path, _ in listed]
    rows = sum(rows for _, rows in listed)
    return Pieces(table.table_uri, table._storage_options, schema, tasks, rows, lsns=(first, end))


def _tasks(files: Iterable[tuple[str, int | None]]) -> list[list[Piece]]:
    tasks: list[list[Piece]] = []
    size = ROWS_PER_TASK
    for path, rows in files:
        parts = 1 + (rows or 0) // ROWS_PER_TASK
        for part in range(parts):
            if size >= ROWS_PER_TASK:
                tasks.append([])
                size = 0
            tasks[-1].append(Piece(path, part, parts))
            size += (rows or 0) // parts
    return tasks


def made_in_tasks(spark: SparkSession, found: Pieces, make: Made, schema: str, at_once: int = BATCH_ROWS) -> DataFrame:
    """What `make` makes of the rows of each task, as they come: batches of `schema`."""

    def make_each(parts: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        for rows in parts:
            yield from make(rows)

    return in_tasks(spark, found, make_each, schema, tasks=max(1, len(found.tasks)), at_once=at_once)


def in_tasks(
    spark: SparkSession, found: Pieces, make: Parts, schema: str, *, tasks: int, at_once: int = BATCH_ROWS
) -> DataFrame:
    """What `make` makes of all rows that each of so many tasks of Spark reads, at most `at_once` at a time."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = (rows for batch in numbers for n in batch.column(0).to_pylist() for rows in found.of_task(n, at_once))
        yield from make(read)
        exempt_imports()

    return spark.range(0, len(found.tasks), 1, tasks).mapInArrow(run, schema)


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
