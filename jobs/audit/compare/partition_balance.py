"""How many records of a partition must be accounted for, and how many of their rows are missing."""

from __future__ import annotations

from dataclasses import dataclass

Partition = tuple[str, int]
"""Topic and partition number."""

RowKey = tuple[str, int, str, str | None]
"""Topic, partition, disposition and reason of a row of the journal."""


@dataclass(frozen=True)
class PartitionRange:
    """The range of offsets that the journal covers: `[first_offset, next_offset)`; `absent` of them hold no record.

    `removed`: rows that the journal had, and that `weir retain` has removed. `lost`: offsets that Kafka deleted before
    they were read, and an operator has accepted as lost.
    """

    first_offset: int
    next_offset: int
    absent: int
    removed: int = 0
    lost: int = 0

    @property
    def records(self) -> int:
        """How many records there were to account for."""
        return self.next_offset - self.first_offset - self.absent - self.lost


def residual(consumed: PartitionRange, rows: int) -> int:
    """How many of the partition's rows are missing; below 0: rows too many."""
    return consumed.records - consumed.removed - rows
