"""Records that become dead letters regardless of content, stored in Postgres before the journal has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import psycopg
import structlog

from jobs.runtime.kafka.topic import Topic
from jobs.runtime.postgres.ownership import Ownership
from metering.texts import encodable
from metering.vocabulary import Isolation

log = structlog.get_logger()

Place = tuple[int, int]
"""Partition and offset."""
Isolated = Mapping[Place, Isolation]

_ADD = """
INSERT INTO isolated_records (topic_id, topic, partition, "offset", reason, detail, asked_by)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_ADD_MANY = """
INSERT INTO isolated_records (topic_id, topic, reason, detail, partition, "offset", size_bytes)
SELECT %s, %s, %s, %s, * FROM unnest(%s::int[], %s::bigint[], %s::bigint[]) ON CONFLICT DO NOTHING
"""
_PENDING = """
SELECT partition, "offset", reason FROM isolated_records WHERE topic_id = %s AND journalled_at IS NULL
"""
_AT = """
FROM unnest(%s::int[], %s::bigint[]) AS place (partition, at)
WHERE r.topic_id = %s AND r.journalled_at IS NULL AND r.partition = place.partition AND r."offset" = place.at
"""
MAX_DETAIL = 2_000


def add_isolated(
    cursor: psycopg.Cursor[Any],
    topic: Topic,
    place: Place,
    reason: Isolation,
    *,
    detail: str,
    asked_by: str | None = None,
) -> bool:
    """Let the record at `place` become a dead letter; False when it is to become one already, or has become one."""
    text = encodable(detail, MAX_DETAIL)
    added = cursor.execute(_ADD, [topic.topic_id, topic.name, *place, reason.value, text, asked_by])
    return added.rowcount == 1


class IsolatedRecords:
    """Those of one topic, for the driver that reads it."""

    def __init__(self, ownership: Ownership, topic: Topic) -> None:
        self._ownership = ownership
        self._topic = topic

    def pending(self) -> Isolated:
        """Those that the journal does not have yet."""
        with self._ownership.transaction() as cursor:
            return self._pending(cursor)

    def _pending(self, cursor: psycopg.Cursor[Any]) -> dict[Place, Isolation]:
        cursor.execute(_PENDING, [self._topic.topic_id])
        return {(partition, offset): Isolation(reason) for partition, offset, reason in cursor.fetchall()}

    def add(self, sizes: Mapping[Place, int | None], reason: Isolation, detail: str) -> None:
        """As `add_isolated`, for the next batch; sizes are bytes. Not journalled, they are withdrawn (`settle`)."""
        places, text = list(sizes), encodable(detail, MAX_DETAIL)
        say = {"topic": self._topic.name, "reason": reason, "at": places[:10], "of": len(places), "why": text}
        log.error("records become dead letters", **say)
        with self._ownership.transaction() as cursor:
            same = [self._topic.topic_id, self._topic.name, reason.value, text]
            cursor.execute(_ADD_MANY, [*same, [p for p, _ in places], [at for _, at in places], list(sizes.values())])

    def journalled(self, places: Collection[Place]) -> None:
        """The journal has these as what they were to become."""
        with self._ownership.transaction() as cursor:
            self._mark(cursor, places)

    def settle(
        self, positions: Mapping[int, int], skipped_in: Callable[[Collection[Place]], Collection[Place]]
    ) -> None:
        """At a start from `positions`: the fate of records that were pending when the last driver ended.

        What a driver has found and not journalled is withdrawn: the next driver may be able to validate the record. A
        skip stays; one that came while its record was being validated came too late, and is no skip. `skipped_in`:
        those of places that the journal has as skipped.
        """
        with self._ownership.transaction() as cursor:
            pending = self._pending(cursor)
            passed = {place for place in pending if place[1] < positions.get(place[0], 0)}
            skips = {place for place, reason in pending.items() if reason is Isolation.SKIPPED}
            done = (passed - skips) | set(skipped_in(passed & skips) if passed & skips else ())
            self._mark(cursor, done)
            self._delete(cursor, (pending.keys() - skips - passed) | (passed - done))

    def _mark(self, cursor: psycopg.Cursor[Any], places: Collection[Place]) -> None:
        cursor.execute(f"UPDATE isolated_records r SET journalled_at = clock_timestamp() {_AT}", self._at(places))

    def _delete(self, cursor: psycopg.Cursor[Any], places: Collection[Place]) -> None:
        using = _AT.replace("FROM", "USING", 1)
        cursor.execute(f"DELETE FROM isolated_records r {using}", self._at(places))

    def _at(self, places: Collection[Place]) -> list[Any]:
        return [[partition for partition, _ in places], [offset for _, offset in places], self._topic.topic_id]
