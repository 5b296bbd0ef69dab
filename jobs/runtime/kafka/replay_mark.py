"""The mark of a dead letter that is sent again: a header that names the record which was rejected.

`weir-replays: <topic>/<partition>/<offset>`. Of several such headers the first is the mark. Whether it counts, the
journal says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame

HEADER = "weir-replays"
COLUMN = "replay_mark"
MOST_BYTES = 300
"""A longer value is no mark."""
FORM = r"^([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})$"
"""Of a mark: the topic, the partition and the offset."""
WITH_HEADERS = {"includeHeaders": "true"}
"""An option of Spark's Kafka source."""

# Without a function of a function, which Spark would not compile; both parts are null where a record has no headers.
_FIRST = f"try_element_at(headers.value, cast(nullif(array_position(headers.key, '{HEADER}'), 0) AS int)) AS {COLUMN}"


class Rejected(NamedTuple):
    """Where a rejected record stands."""

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


def marked(records: DataFrame) -> DataFrame:
    """Records of Spark's Kafka source (WITH_HEADERS), and their marks as COLUMN; binary, null without one."""
    return records.selectExpr("*", _FIRST)


def mark_in(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """The same of one record's headers."""
    return next((value for name, value in headers if name == HEADER), None)
