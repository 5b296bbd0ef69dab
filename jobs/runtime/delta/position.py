"""A position: how far a table was read, the table's identity, and a fingerprint of the row before it.

A number alone fits any table. The identity detects a new table. The fingerprint detects a table that was rolled back
and has grown past the position again: another row stands there now.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltalake import DeltaTable

from jobs.runtime.delta.table import DeltaWriter, microseconds_of
from jobs.streams import Table

FINGERPRINT: Mapping[Table, tuple[str, ...]] = {
    Table.JOURNAL: ("topic", "partition", "offset", "logged_at"),
    Table.USAGE: ("request_lsn", "completion_lsn", "logged_at"),
}
"""The columns by which a row is known again. Erasure and compaction leave them as they are."""


@dataclass(frozen=True)
class Position:
    """The next lsn to read. `table` and `row` are 63-bit hashes; None in a position of a version that had none yet.

    `row` is None also where no row stands before the position.
    """

    next_lsn: int = 1
    table: int | None = None
    row: int | None = None


def with_fingerprint(table: Table, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that a job reads of `table`, and with them those that its positions need."""
    return tuple(dict.fromkeys((*columns, *FINGERPRINT[table])))


def table_hash(table: DeltaTable) -> int:
    """A table's id (that of its Delta log) as positions hold it."""
    return _hash(str(table.metadata().id))


def row_hash(table: Table, lsn: int, row: Mapping[str, Any]) -> int:
    """The fingerprint of the row at `lsn`, from its columns FINGERPRINT; instants may be microseconds since 1970."""
    return _hash(json.dumps([lsn, *(_exactly(row[name]) for name in FINGERPRINT[table])]))


def position_after(table: Table, before: Position, next_lsn: int, last_row: Mapping[str, Any]) -> Position:
    """The position after rows of `table` that end with `last_row` (FINGERPRINT), before `next_lsn`."""
    return Position(next_lsn, before.table, row_hash(table, next_lsn - 1, last_row))


def position_in(made: DeltaTable, table: Table) -> Position:
    """The position in `table` that the last commit of a Delta table holds, which was made of it."""
    number, identity, row = (made.transaction_version(name) for name in (table.value, f"{table}.table", f"{table}.row"))
    return Position(number or 1, identity, row)


def recall_position(writer: DeltaWriter, table: Table) -> Position:
    """The position in `table` that a Delta table's transactions hold; the number stays watched."""
    next_lsn = writer.watch(table.value) or 1
    return Position(next_lsn, writer.recall(f"{table}.table"), writer.recall(f"{table}.row"))


def transactions_of(table: Table, position: Position) -> dict[str, int]:
    """A position in `table` as the transactions of a commit."""
    versions = {table.value: position.next_lsn, f"{table}.table": position.table, f"{table}.row": position.row}
    return {name: version for name, version in versions.items() if version is not None}


def _exactly(value: Any) -> Any:
    return microseconds_of(value) if isinstance(value, datetime) else value


def _hash(text: str) -> int:
    # 63 bits, because a Delta transaction holds a signed number of 64.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1
