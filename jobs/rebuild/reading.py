"""One version of a Delta table in lsn order: in chunks, each proved to have every row once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.audit.tables.retained import retained_rows
from jobs.runtime.batch import LsnRange
from jobs.runtime.delta.position import FINGERPRINT, Position, position_after, table_hash
from jobs.runtime.delta.table import FRONTIER, LSN, instant_of, open_to_change
from jobs.runtime.errors import Refused
from jobs.runtime.new_rows import driver_new_rows
from jobs.streams import Table


@dataclass(frozen=True)
class Whole:
    """A table that still has all its rows."""

    name: Table
    table: DeltaTable

    @property
    def next_lsn(self) -> int:
        """The lsn after its last row."""
        return self.table.transaction_version(LSN) or 1

    @property
    def frontier(self) -> datetime | None:
        """F of all of it."""
        return instant_of(self.table.transaction_version(FRONTIER))

    @cached_property
    def _rows(self) -> ds.Dataset:
        return self.table.to_pyarrow_dataset()

    def chunks(
        self, job: str, columns: Sequence[str], max_rows: int, borders: Sequence[int]
    ) -> Iterator[tuple[pa.Table, Position]]:
        """Rows by lsn, at most that many at once and never across one of `borders`, with the position after them.

        A column that the table does not have yet is left out. Raises Refused where rows are missing or duplicated.
        """
        stored = set(self._rows.schema.names)
        read = [name for name in columns if name in stored]
        at, ends = Position(1, table_hash(self.table)), sorted({*borders, self.next_lsn})
        while at.next_lsn < self.next_lsn:
            end = min(at.next_lsn + max_rows, next(border for border in ends if border > at.next_lsn))
            wanted = (pc.field("lsn") >= at.next_lsn) & (pc.field("lsn") < end)
            rows, found = driver_new_rows(
                self._rows.to_table(columns=read, filter=wanted), at.next_lsn, job, FINGERPRINT[self.name]
            )
            self._refuse_short(found, end)
            at = position_after(self.name, at, found.next, found.last)
            yield rows.sort_by("lsn"), at

    def _refuse_short(self, found: LsnRange, end: int) -> None:
        if found.next != end:
            raise Refused(f"{self.table.table_uri} has no row {found.next}, but later ones: restore it, and try again")


def whole(tables: str, name: Table) -> Whole:
    """The table as it is now. Raises Refused where it does not exist, or some of its days were removed."""
    table = open_to_change(tables, name)
    if table is None:
        raise Refused(f"there is no {name} in {tables}: nothing can be made of it")
    if (since := retained_rows(table).since) is not None:
        raise Refused(
            f"{name} has lost the days before {since} (`weir retain` removes what is old), so what they made cannot be "
            "made again; restore the database from a backup instead: the applications go on from there"
        )
    return Whole(name, table)
