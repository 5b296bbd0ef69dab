"""Records that become dead letters whatever they say, in Postgres: asked for, or found, before the journal has them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import psycopg

from jobs.runtime.kafka import Topic
from jobs.runtime.ownership import Ownership


class Isolation(StrEnum):
    """Why a record is not judged by what it says; also a dead letter's reason and a metric's label."""

    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    SKIPPED = "skipped"


Isolated = Mapping[tuple[int, int], Isolation]
"""By partition and offset."""

_ADD = """
INSERT INTO isolated_records (topic_id, topic, partition, "offset", reason, detail, size_bytes)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
LONGEST_DETAIL = 2_000


def add_isolated(
    cursor: psycopg.Cursor[Any],
    topic: Topic,
    place: tuple[int, int],
    reason: Isolation,
    *,
    detail: str,
    size_bytes: int | None = None,
) -> bool:
    """Let the record at `place` (partition, offset) become a dead letter; False when it is to become one already."""
    text = detail.replace("\0", "")[:LONGEST_DETAIL]
    added = cursor.execute(_ADD, [topic.topic_id, topic.name, *place, reason.value, text, size_bytes])
    return added.rowcount == 1


class IsolatedRecords:
    """Those of one topic, for the driver that reads it."""

    def __init__(self, ownership: Ownership, topic: Topic) -> None:
        self._ownership = ownership
        self._topic = topic

    def pending(self) -> Isolated:
        """Those that the journal does not have yet."""
        with self._ownership.transaction() as cursor:
            cursor.execute(
                'SELECT partition, "offset", reason FROM isolated_records'
                " WHERE topic_id = %s AND journalled_at IS NULL",
                [self._topic.topic_id],
            )
            return {(partition, offset): Isolation(reason) for partition, offset, reason in cursor.fetchall()}

    def add(self, place: tuple[int, int], reason: Isolation, detail: str, size_bytes: int | None = None) -> None:
        """As `add_isolated`."""
        with self._ownership.transaction() as cursor:
            add_isolated(cursor, self._topic, place, reason, detail=detail, size_bytes=size_bytes)

    def journalled(self, positions: Mapping[int, int]) -> None:
        """The journal has all records below `positions`."""
        with self._ownership.transaction() as cursor:
            cursor.execute(
                """
                UPDATE isolated_records r SET journalled_at = clock_timestamp()
                FROM unnest(%s::int[], %s::bigint[]) AS p (partition, next_offset)
                WHERE topic_id = %s AND journalled_at IS NULL
                  AND r.partition = p.partition AND r."offset" < p.next_offset
                """,
                [list(positions.keys()), list(positions.values()), self._topic.topic_id],
            )
