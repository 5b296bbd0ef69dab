"""A file of rows with a schema: Parquet, or CSV in FOCUS's formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from jobs.exports.files import CannotExport
from jobs.exports.month import Charge
from metering.csv_lines import csv_line


class FileFormat(StrEnum):
    """What a file of charges is."""

    PARQUET = "parquet"
    CSV = "csv"


@contextmanager
def writer(path: Path, form: FileFormat, schema: pa.Schema) -> Iterator[Callable[[Iterable[Charge]], None]]:
    """What writes batches to a file of this format."""
    if form is FileFormat.PARQUET:
        with parquet.ParquetWriter(path, schema, compression="zstd") as file:
            yield lambda charges: file.write_batch(_record_batch(charges, schema))
        return
    with path.open("w", encoding="utf-8", newline="") as out:
        out.write(csv_line(schema.names))
        yield lambda charges: out.writelines(
            csv_line([_cell(charge.get(name)) for name in schema.names]) for charge in charges
        )


def _record_batch(charges: Iterable[Charge], schema: pa.Schema) -> pa.RecordBatch:
    listed = list(charges)
    columns = [_array([row.get(field.name) for row in listed], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Raises CannotExport for a value that has more digits than the column: it is never rounded."""
    try:
        return pa.array(values, field.type)
    except pa.ArrowInvalid as error:
        raise CannotExport(
            f"{field.name} takes no value of more digits ({error}); --format csv has no limit."
        ) from None


def _cell(value: Any) -> Any:
    """A value for CSV: FOCUS writes booleans in small letters."""
    return str(value).lower() if isinstance(value, bool) else value
