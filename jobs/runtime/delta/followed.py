"""A handle on a Delta table for as long as a driver runs, at a cost that does not grow with the commits it has seen.

delta-rs keeps what each commit added until it begins with a checkpoint, and looks through all of it with each commit. A
handle that has a checkpoint does not take the next one if it was already at that version when it was written. So a
writer never does: its own commits write the checkpoints. After 1,000 commits one cost five times the CPU.
"""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

CHECKPOINT_INTERVAL = "delta.checkpointInterval"
COMMITS_PER_CHECKPOINT = 100
"""Of a table that does not say otherwise: version 99 has a checkpoint, version 199, and so on."""


class FollowedTable:
    """A table as of the last `refresh`, or of the last commit that was made with `table`."""

    def __init__(self, table: DeltaTable) -> None:
        self.table = table
        """Until the next `refresh`, which may open another."""
        self._hold(table)

    @property
    def commits_followed(self) -> int:
        """Since the table was opened."""
        return int(self.table.version()) - self._opened_at

    def refresh(self, known: int = 0) -> DeltaTable:
        """The newest version; the table is opened again where a checkpoint was due since, before the version `known`.

        One that is not there, as of a driver that ended before it, leaves more commits to read until the next.
        """
        newest = self._reopened() if self._has_passed_checkpoint(known) else None
        if newest is None:
            self.table.update_incremental()
        else:
            self._hold(newest)
        return self.table

    def is_due(self, version: int) -> bool:
        """Whether the commit of this version ends with a checkpoint."""
        return (version + 1) % self._every == 0

    def write_checkpoint(self) -> None:
        """Of the newest version, as delta-rs does after a commit of its own where `is_due`. None of another table."""
        if (newest := self._reopened()) is not None:
            newest.create_checkpoint()
            self._hold(newest)

    def _hold(self, table: DeltaTable) -> None:
        self.table = table
        self._opened_at = int(table.version())
        self._every = int(table.metadata().configuration.get(CHECKPOINT_INTERVAL) or COMMITS_PER_CHECKPOINT)

    def _has_passed_checkpoint(self, known: int) -> bool:
        """A commit after it says that it was written: the version of a checkpoint comes before it."""
        return max(int(self.table.version()), known) // self._every > self._opened_at // self._every

    def _reopened(self) -> DeltaTable | None:
        """None where that is no later version of the same table: who compares logs must see it by the old handle."""
        try:
            found = DeltaTable(self.table.table_uri, storage_options=self.table._storage_options)
        except TableNotFoundError:
            return None
        is_same = found.metadata().id == self.table.metadata().id and found.version() >= self.table.version()
        return found if is_same else None
