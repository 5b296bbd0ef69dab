"""How validated records come from Spark's workers to the driver: in Arrow files, of which Spark gets only the names.

Java would turn every column into rows and every row back into columns, and hold all of them: a quarter of ingestion's
CPU.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

FILES = pa.schema([("validated_file", pa.string())])
"""What Spark is given instead of records."""


def left_in(folder: Path, validated: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Leave tables of `schema` in one new file in `folder`, which must be there; its name (FILES), or nothing of none.

    Raises OSError.
    """
    tables = iter(validated)
    if (first := next(tables, None)) is None:
        return
    descriptor, name = tempfile.mkstemp(".arrow", dir=folder)
    with os.fdopen(descriptor, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    yield pa.RecordBatch.from_pydict({"validated_file": [name]}, FILES)


def collected(given: pa.Table, schema: pa.Schema) -> pa.Table:
    """The validated records that Spark gave, or left in files (FILES); those are gone then, and what is read stays
    mapped.

    Raises OSError.
    """
    if given.schema.names != FILES.names:
        return given
    return pa.concat_tables(
        [schema.empty_table(), *(_collected(Path(name)) for name in given["validated_file"].to_pylist())]
    )


def _collected(file: Path) -> pa.Table:
    with pa.memory_map(str(file)) as mapped:
        found = pa.ipc.open_file(mapped).read_all()
    file.unlink()
    return found
