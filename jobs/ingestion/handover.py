"""How validated records come from Spark's workers to the driver: in Arrow files, of which Spark gets only the names.

Java would turn every column into rows and every row back into columns, and hold all of them: a quarter of ingestion's
CPU. Workers beside the driver leave them in a folder of its disk, those of executors beside the journal's files: there
with a summary of each file, which is all that the driver reads of a large batch (`large_batch`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import PyFileSystem

from jobs.ingestion.summaries import BATCH, FILE, ROW, as_records, summary_of
from jobs.runtime.delta.new_files import Exchanged

FILES = pa.schema(
    [
        ("validated_file", pa.string()),
        ("summary_file", pa.string()),
        ("rows", pa.int64()),
    ]
)
"""What Spark is given instead of records: where they are, their summary (null where none was made), and how many rows
they are."""
Place = Path | Exchanged
"""A folder of this machine, which must be there; or that of a table, in the store that all executors see."""


@dataclass(frozen=True)
class Left:
    """The files that tasks have left of a batch (FILES), beside those of a table."""

    files: pa.Table
    beside: Exchanged

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return int(pc.sum(self.files["rows"]).as_py() or 0)

    @property
    def has_summaries(self) -> bool:
        """Whether all files have one."""
        return not self.files["summary_file"].null_count

    @property
    def paths(self) -> list[str]:
        """Of the validated records."""
        found: list[str] = self.files["validated_file"].to_pylist()
        return found

    def summaries(self) -> pl.DataFrame:
        """What the driver decides by (`summaries.SUMMARY`), with the number of the file among `paths`.

        Raises OSError.
        """
        files, found = self.beside.folder.files, []
        for number, path in enumerate(self.files["summary_file"].to_pylist()):
            with files.open_input_file(path) as stream:
                table = pa.ipc.open_file(pa.BufferReader(stream.read_buffer())).read_all()
            found.append(as_records(table).with_columns(pl.lit(number, pl.UInt32).alias(FILE)))
        return pl.concat(found)

    def records(self, places: pl.DataFrame) -> pl.DataFrame:
        """The whole records at these places (FILE, BATCH, ROW), at least one, in their order.

        Raises OSError.
        """
        return records_at(self.beside.folder.files, self.paths, places)

    def remove(self) -> None:
        """Remove all of them."""
        names = [*self.paths, *self.files["summary_file"].drop_null().to_pylist()]
        self.beside.folder.remove(names)


def records_at(files: PyFileSystem, paths: Sequence[str], places: pl.DataFrame) -> pl.DataFrame:
    """Of validated records in files those at these places (FILE, BATCH, ROW), at least one, in the order of `places`.

    Raises OSError.
    """
    numbered = places.select(FILE, BATCH, ROW).with_row_index("place")
    by_batch = dict(iter(numbered.group_by(FILE, BATCH)))
    read, order = list[pa.Table](), list[pl.Series]()
    for file in sorted({file for file, _ in by_batch}):
        with files.open_input_file(paths[file]) as stream:
            reader = pa.ipc.open_file(stream)
            for batch in sorted(batch for of_file, batch in by_batch if of_file == file):
                of_batch = by_batch[file, batch]
                # These alone: others, which may be many more, are let go with the batch.
                taken = reader.get_batch(batch).take(of_batch[ROW].to_arrow())
                read.append(pa.Table.from_batches([taken]))
                order.append(of_batch["place"])
    return pl.DataFrame(pa.concat_tables(read))[pl.concat(order).arg_sort()]


def left_in(place: Place, validated: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Leave tables of `schema` in one new file; its name (FILES), or nothing of none. Each attempt of a task has its
    own.

    Raises OSError.
    """
    tables = iter(validated)
    if (first := next(tables, None)) is None:
        return
    if isinstance(place, Path):
        descriptor, name = tempfile.mkstemp(".arrow", dir=place)
        with os.fdopen(descriptor, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            made = _Written(writer)
            made.add(first, *tables)
        yield _files(name, None, made)
        return
    data, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(data, schema, options=options) as writer:
        made = _Written(writer, summaries=[])
        made.add(first, *tables)
    validated_file, summary_file = place.new_path("validated"), place.new_path("summary")
    place.folder.put(validated_file, data.getvalue())
    summary = summary_of(made.summaries or [])
    data = pa.BufferOutputStream()
    with pa.ipc.new_file(data, summary.schema, options=options) as writer:
        writer.write_table(summary)
    place.folder.put(summary_file, data.getvalue())
    yield _files(validated_file, summary_file, made)


class _Written:
    """What was written into a file, batch by batch."""

    def __init__(self, writer: pa.ipc.RecordBatchFileWriter, summaries: list[pa.RecordBatch] | None = None) -> None:
        self._writer, self.summaries = writer, summaries
        self.rows = 0

    def add(self, *tables: pa.Table) -> None:
        for table in tables:
            for batch in table.to_batches():
                self._writer.write_batch(batch)
                self.rows += len(batch)
                if self.summaries is not None:
                    self.summaries.append(batch)


def _files(validated: str, summary: str | None, made: _Written) -> pa.RecordBatch:
    values = (validated, summary, made.rows)
    return pa.RecordBatch.from_pylist([dict(zip(FILES.names, values, strict=True))], FILES)


def collected(given: pa.Table, schema: pa.Schema, beside: Exchanged | None = None) -> pa.Table:
    """The validated records that Spark gave, or left in files (FILES), of this machine or beside those of a table. The
    first are gone then, and what is read of them stays mapped; the others are for `Left.remove`.

    Raises OSError.
    """
    if given.schema.names != FILES.names:
        return given
    names = given["validated_file"].to_pylist()
    if not names:
        return schema.empty_table()
    if beside is None:
        return pa.concat_tables([_mapped(Path(name)) for name in names])
    files, found = beside.folder.files, []
    for name in names:
        with files.open_input_file(name) as stream:
            found.append(pa.ipc.open_file(stream).read_all())
    return pa.concat_tables(found)


def _mapped(file: Path) -> pa.Table:
    with pa.memory_map(str(file)) as mapped:
        found = pa.ipc.open_file(mapped).read_all()
    file.unlink()
    return found
