"""Whether the tables are the ones that their readers have read, before anything is deleted that only their logs name.

A table that was rolled back or recreated may yet be restored by a person: its readers refuse it until then. What its
log has forgotten looks like files that nobody needs.
"""

from __future__ import annotations

from typing import Any

import psycopg

from jobs.runtime.delta.position import Position, position_in
from jobs.runtime.delta.table import open_to_change
from jobs.runtime.delta.upstream import identified
from jobs.runtime.errors import Refused
from jobs.streams import Table

_POSITIONS = "SELECT job, next_position, input_table, row_before FROM positions WHERE input = %s"
MADE_OF_THE_JOURNAL = {
    Table.USAGE: "joins",
    Table.ACCOUNTS: "joins for accounts",
    Table.PRICES: "joins for prices",
}
"""Delta tables that hold a position in the journal, and who made them of it."""


def refuse_tables_not_read(tables: str, connection: psycopg.Connection[Any]) -> None:
    """Raises Refused where any table is not the one that its readers have read, or where a newer version writes it.

    Of all tables, before any is changed: they may have been rolled back together, and then no position in one of them
    tells of another. Of `accounts` and `prices` only joins can tell, and no file of theirs is deleted.
    """
    for table in (Table.JOURNAL, Table.USAGE):
        # First how far it was read: readers go on meanwhile, and never beyond what the table holds by then.
        positions = _positions(tables, table, connection)
        if (found := open_to_change(tables, table)) is None:
            continue
        for reader, position in positions.items():
            try:
                identified(found, table, f"{tables}/{table}", reader, position)
            except Refused as refusal:
                raise Refused(f"nothing was compacted: {refusal}") from None


def _positions(tables: str, table: Table, connection: psycopg.Connection[Any]) -> dict[str, Position]:
    """How far each reader has read a table, wherever it keeps that."""
    positions = {job: Position(*stored) for job, *stored in connection.execute(_POSITIONS, [table.value]).fetchall()}
    if table is Table.JOURNAL:
        for made, reader in MADE_OF_THE_JOURNAL.items():
            if (found := open_to_change(tables, made)) is not None:
                positions[reader] = position_in(found, table)
    return positions
