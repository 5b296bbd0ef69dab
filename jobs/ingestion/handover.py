"""How validated records come from Spark's workers to the driver: in Arrow files, of which Spark gets only the names.

Java would turn every column into rows and every row back into columns, and hold all of them: a quarter of ingestion's
CPU. Workers beside the driver leave them in a folder of its disk, those of executors beside the journal's files.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from jobs.runtime.delta.new_files import EXCHANGE, Folder

FILES = pa.schema([("validated_file", pa.string())])
"""What Spark is given instead of records."""
Place = Path | Folder
"""A folder of this machine, which must be there; or that of a table, in the store that all executors see."""


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
        with os.fdopen(descriptor, "wb") as file:
            _write(pa.ipc.new_file(file, schema), first, tables)
    else:
        name, data = f"{EXCHANGE}/validated-{uuid.uuid4()}.arrow", pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        _write(pa.ipc.new_file(data, schema, options=options), first, tables)
        place.put(name, data.getvalue())
    yield pa.RecordBatch.from_pydict({"validated_file": [name]}, FILES)


def _write(file: pa.ipc.RecordBatchFileWriter, first: pa.Table, others: Iterator[pa.Table]) -> None:
    with file as writer:
        writer.write_table(first)
        for table in others:
            writer.write_table(table)


def collected(given: pa.Table, schema: pa.Schema, beside: Folder | None = None) -> pa.Table:
    """The validated records that Spark gave, or left in files (FILES), of this machine or in the folder of a table;
    those are gone then, and what is read of this machine stays mapped.

    Raises OSError.
    """
    if given.schema.names != FILES.names:
        return given
    names = given["validated_file"].to_pylist()
    return pa.concat_tables([schema.empty_table(), *(_taken(name, beside) for name in names)])


def _taken(name: str, beside: Folder | None) -> pa.Table:
    if beside is None or not name.startswith(f"{EXCHANGE}/"):
        return _mapped(Path(name))
    with beside.files.open_input_file(name) as stream:
        found = pa.ipc.open_file(stream).read_all()
    beside.remove([name])
    return found


def _mapped(file: Path) -> pa.Table:
    with pa.memory_map(str(file)) as mapped:
        found = pa.ipc.open_file(mapped).read_all()
    file.unlink()
    return found
