"""How far the table is that a job reads: its next lsn and its frontier, by a look at its log."""

from __future__ import annotations

from datetime import datetime

from deltalake import DeltaTable

from jobs.runtime.delta import FRONTIER, LSN, instant_of, open_table
from jobs.streams import Table


class Upstream:
    """The input table's last commit, as of the last `refresh`."""

    def __init__(self, tables: str, table: Table) -> None:
        self._tables = tables
        self._name = table
        self._table: DeltaTable | None = None
        self.next_lsn = 1
        self.frontier: datetime | None = None

    @property
    def version(self) -> int | None:
        """The table's version; None before it exists."""
        return None if self._table is None else int(self._table.version())

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns; it may get more while it is read."""
        return () if self._table is None else tuple(field.name for field in self._table.schema().fields)

    def refresh(self) -> None:
        """Look again."""
        if self._table is None:
            self._table = open_table(self._tables, self._name)
        else:
            self._table.update_incremental()
        if self._table is not None:
            self.next_lsn = self._table.transaction_version(LSN) or 1
            self.frontier = instant_of(self._table.transaction_version(FRONTIER))
