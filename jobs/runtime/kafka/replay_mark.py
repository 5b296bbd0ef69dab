"""The mark of a redriven dead letter: a header (`marks.REPLAYS`) that names the rejected record.

`weir-replays: <topic>/<partition>/<offset>`. The journal decides whether it counts.
"""

from __future__ import annotations

from typing import NamedTuple

FORM = r"^([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})$"
"""Of a mark: the topic, the partition and the offset."""


class Rejected(NamedTuple):
    """The place of a rejected record."""

    topic: str
    partition: int
    offset: int

    @property
    def mark(self) -> str:
        """What names it."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def named(cls, mark: str) -> Rejected:
        """What a mark of FORM names."""
        topic, partition, offset = mark.split("/")
        return cls(topic, int(partition), int(offset))
