"""A stamp far ahead of the database's clock is a broker's fault: it would advance F for good and close everything.

Such a batch waits until the clock has passed the stamp, or until a person declares which stamps are wrong (`weir
journal restamp`). The instruction is stored in Postgres until it is carried out, and in the journal from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import psycopg

from jobs.ingestion.received import Restamp, believed
from jobs.runtime.errors import START_OVER, NotYet
from jobs.runtime.kafka.topic import Topic
from metering.vocabulary import Cause

_LOOK = """
SELECT clock_timestamp(), (
    SELECT coalesce(jsonb_agg(jsonb_build_array(topic_id, partition, first_offset, last_offset)), '[]')
    FROM restamps WHERE topic_id = ANY (%s) AND applied_at IS NULL
), (SELECT coalesce(max(erasure), 0) FROM erasures)
"""
_SETTLE = """
UPDATE restamps SET applied_at = clock_timestamp()
WHERE topic_id = %s AND partition = %s AND last_offset < %s AND applied_at IS NULL
"""


@dataclass(frozen=True)
class Look:
    """The database's time before a batch, the stamps that an operator has declared wrong, and the newest erasure."""

    now: datetime
    restamps: Mapping[str, tuple[Restamp, ...]]
    """By topic, each that was asked about."""
    newest_erasure: int = 0


def look(connection: psycopg.Connection[Any], topics: Sequence[Topic]) -> Look:
    """Ask the database about these topics, in one round trip."""
    row = connection.execute(_LOOK, [[topic.topic_id for topic in topics]]).fetchone()
    assert row is not None
    restamps = {
        topic.name: tuple(Restamp(*restamp) for topic_id, *restamp in row[1] if topic_id == topic.topic_id)
        for topic in topics
    }
    return Look(row[0], restamps, row[2])


def wait_for_stamps(
    records: pl.DataFrame, topic: str, now: datetime, restamps: Sequence[Restamp], limit: timedelta
) -> None:
    """Raise NotYet when a topic's records (partition, offset, stamped_at, is_broker_stamp) are stamped too far in the
    future; `now` is the database's time.
    """
    is_ahead = believed(restamps) & (pl.col("stamped_at") > now + limit)
    ahead = (
        records.filter(is_ahead)
        .group_by("partition")
        .agg(pl.col("offset").min().alias("first"), pl.col("offset").max().alias("last"), pl.col("stamped_at").max())
        .sort("partition")
    )
    if ahead.is_empty():
        return
    latest: datetime = ahead["stamped_at"].max()  # type: ignore[assignment]  # the column holds instants
    commands = [f"weir journal restamp {p} {first} {last} --topic {topic}" for p, first, last, _ in ahead.iter_rows()]
    raise NotYet(
        Cause.BROKER_CLOCK,
        f"a broker has stamped records of {topic} up to {latest.isoformat(timespec='seconds')}, "
        f"{(latest - now).total_seconds():.0f} s ahead of the database's clock (at most "
        f"{limit.total_seconds():.0f} s): set the brokers' clocks by NTP; then ingestion continues when that time has "
        f"come, or at once if you run: {'; '.join(commands)}",
    )


def wait_for_frontier(frontier: datetime | None, now: datetime, limit: timedelta) -> None:
    """Raise NotYet if the journal itself is too far ahead: an earlier release that believed any stamp wrote it."""
    if frontier is not None and frontier > now + limit:
        raise NotYet(
            Cause.BROKER_CLOCK,
            f"the journal's frontier is {frontier.isoformat(timespec='seconds')}, which is in the future: every event "
            f"read before then would be late; wait, and ingestion continues when that time has come, {START_OVER}",
        )


def followed(records: pl.DataFrame, restamps: Mapping[str, Sequence[Restamp]]) -> Mapping[str, Any]:
    """What the journal's `rules` say of the restamps that records of a batch (topic, partition, offset) are given.

    `restamps`: by topic, each that is read. They are told with their topic where it is not the only one.
    """
    found = []
    for topic, of_topic in restamps.items():
        named = {"topic": topic} if len(restamps) > 1 else {}
        for restamp in of_topic:
            offsets = records.filter(pl.col("topic") == topic, restamp.holds())["offset"]
            if not offsets.is_empty():
                found.append({**named, "partition": restamp.partition, "from": offsets.min(), "to": offsets.max()})
    return {"restamped": found} if found else {}


def settle(
    cursor: psycopg.Cursor[Any], topic_id: str, restamps: Sequence[Restamp], positions: Mapping[int, int]
) -> None:
    """Note which restamps were followed to their end, as the journal's positions say."""
    for partition in {restamp.partition for restamp in restamps}:
        cursor.execute(_SETTLE, [topic_id, partition, positions.get(partition, 0)])
