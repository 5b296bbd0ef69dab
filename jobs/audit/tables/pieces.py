"""A version of a table in pieces, each read by one task: rows that bypass Java cost half."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TASK = 200_000
BATCH_ROWS = 50_000
LOG_DATE = "log_date"
Made = Callable[[pa.Table], Iterable[pa.RecordBatch]]


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

    def of_task(self, number: int, at_once: int) -> Iterator[pa.Table]:
        """The rows of a task, at most that many at once, with the columns of `schema`; null if a file lacks one."""
        files = PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        for piece in self.tasks[number]:
            with pq.ParquetFile(files.open_input_file(piece.path), pre_buffer=True) as file:
                groups = [n for n in range(file.num_row_groups) if n % piece.parts == piece.part]
                names = [name for name in self.schema.names if name in file.schema_arrow.names]
                if self.wanted is not None:
                    for group in groups:
                        yield from self._wanted_of(file, group, names, at_once)
                    continue
                for batch in file.iter_batches(at_once, groups, names) if groups else ():
                    yield _with_schema(pa.Table.from_batches([batch]), self.schema)

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
    tasks: list[list[Piece]] = []
    size = ROWS_PER_TASK
    for path, rows in files.select("path", "num_records").iter_rows() if len(files) else ():
        parts = 1 + (rows or 0) // ROWS_PER_TASK
        for part in range(parts):
            if size >= ROWS_PER_TASK:
                tasks.append([])
                size = 0
            tasks[-1].append(Piece(path, part, parts))
            size += (rows or 0) // parts
    rows = int(files["num_records"].sum()) if len(files) else 0
    return Pieces(table.table_uri, table._storage_options, schema, tasks, rows, wanted)


def made_in_tasks(spark: SparkSession, found: Pieces, make: Made, schema: str, at_once: int = BATCH_ROWS) -> DataFrame:
    """What `make` makes of the rows of each task, as they come: batches of `schema`."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in found.of_task(number, at_once):
                    yield from make(rows)

    task_count = len(found.tasks)
    return spark.range(0, task_count, 1, max(1, task_count)).mapInArrow(run, schema)


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
