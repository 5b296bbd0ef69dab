"""How rows are encoded in Parquet: by Arrow (tasks, large batches) and by delta-rs (small ones, compactions); and what
the log says of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, WriterProperties

DISTINCT = (
    *("lsn", "offset", "first_lsn", "replays_lsn", "request_lsn", "completion_lsn", "sequence"),
    *("received_at", "first_received_at", "occurred_at", "sent_at", "event_time"),
    *("identity", "content_digest", "content_hash", "id", "request_id", "value"),
)
"""Columns whose values hardly repeat: a dictionary of them would be made, grow too large, and be given up."""
COMPRESSION: Literal["ZSTD"] = "ZSTD"
COMPRESSION_LEVEL = 1
PAGE_BYTES, PAGE_ROWS = 8 << 20, 1_024
"""Of a column in a file: a reader has a page as a whole. So many rows are written before anybody looks at its bytes."""
_PLAIN = {name: ColumnProperties(dictionary_enabled=False) for name in DISTINCT}
OF_MANY_ROWS = WriterProperties(compression=COMPRESSION, compression_level=COMPRESSION_LEVEL, column_properties=_PLAIN)


def rows_of_a_page(rows: pa.Table) -> int:
    """How many rows are written before the bytes of a page are looked at: fewer where rows are large."""
    return max(1, min(PAGE_ROWS, PAGE_BYTES * max(1, len(rows)) // max(1, int(rows.nbytes))))


def of_few_rows(rows: pa.Table) -> WriterProperties:
    """How delta-rs writes them: zstd costs more to begin with than it saves of a few kilobytes."""
    count = rows_of_a_page(rows)
    return WriterProperties(
        compression="SNAPPY",
        column_properties=_PLAIN,
        write_batch_size=count,
        data_page_size_limit=None if count == PAGE_ROWS else PAGE_BYTES,
    )


@lru_cache
def with_dictionary(schema: pa.Schema) -> list[str]:
    """The columns that Arrow writes with a dictionary, as Parquet names them."""
    return [path for field in schema if field.name not in DISTINCT for path in _leaves(field.name, field.type)]


def _leaves(path: str, kind: pa.DataType) -> Iterable[str]:
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{path}.{field.name}", field.type)]
    return [path]


def statistics_of(rows: pa.Table, columns: frozenset[str]) -> dict[str, Any]:
    """What delta-rs says of the rows in these columns; instants to the millisecond before, as Delta has them."""
    names = [name for name in rows.column_names if name in columns]
    ends = {name: pc.min_max(rows[name]).as_py() for name in names if rows[name].null_count < len(rows)}
    return {
        "numRecords": len(rows),
        "minValues": {name: _shown(end["min"]) for name, end in ends.items()},
        "maxValues": {name: _shown(end["max"]) for name, end in ends.items()},
        "nullCount": {name: rows[name].null_count for name in names},
    }


def _shown(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
