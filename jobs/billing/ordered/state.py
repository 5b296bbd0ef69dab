"""How far `events.ordered` is: one row of Postgres, which moves only from what its publisher has read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from jobs.billing.ordered.order import NEVER_US, Cursor, Wait
from jobs.runtime.delta.position import Position
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.errors import Fenced
from metering.vocabulary import ORDERED_EVENTS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WANTED = "INSERT INTO ordered_events (topic) VALUES (%s) ON CONFLICT DO NOTHING"
_UNWANTED = "DELETE FROM ordered_events"
_READ = "SELECT * FROM ordered_events WHERE topic = %s"
_MOVE = """
UPDATE ordered_events SET
    next_position = %(next_position)s, input_table = %(input_table)s, row_before = %(row_before)s,
    watermark = %(watermark)s, waiting_from = %(waiting_from)s, sequence = %(sequence)s,
    sent_generation = %(sent_generation)s, sent_event_time = %(sent_event_time)s, sent_lsn = %(sent_lsn)s,
    waits = %(waits)s
WHERE topic = %(topic)s
  AND (next_position, sequence) IS NOT DISTINCT FROM (%(was_next_position)s::bigint, %(was_sequence)s::bigint)
  AND EXISTS (SELECT FROM jobs WHERE job = 'billing' AND epoch = %(epoch)s)
"""
BEHIND = """
SELECT coalesce(greatest(extract(epoch FROM CASE
    WHEN next_position IS NULL OR (watermark IS NULL AND reached.frontier IS NOT NULL)
    THEN clock_timestamp() - wanted_at
    ELSE reached.frontier - make_interval(secs => (waits #>> '{0,1}')::float8) - watermark
END), 0), 0)
FROM ordered_events,
     (SELECT max((progress ->> 'frontier')::timestamptz) AS frontier FROM jobs WHERE job = 'ingestion') AS reached
"""
"""How many seconds the watermark is behind the frontier less the wait of the next generation, or how long ago the topic
was wanted that has not begun; no row where it is not wanted."""


@dataclass(frozen=True)
class Progress:
    """Up to where the journal is published.

    All generations before `position` are. Of the next ones the events up to `cursor` are, if there is one. No event
    before the lsn `waiting_from` waits. `sequence` is that of the last event.
    """

    position: Position
    watermark_us: int
    waiting_from: int
    sequence: int
    waits: tuple[Wait, ...]
    cursor: Cursor | None = None

    def waiting(self, seconds: int, from_lsn: int) -> Progress:
        """From the generation on that begins at `from_lsn` or later, events are waited for so long."""
        held = [wait for wait in self.waits if wait.first_lsn < from_lsn or wait is self.waits[0]]
        if held[-1].seconds == seconds:
            return replace(self, waits=tuple(held))
        return replace(self, waits=(*held, Wait(from_lsn, seconds)))

    def without_past_waits(self) -> Progress:
        """Without waits that no generation from the position on has."""
        begun = [number for number, wait in enumerate(self.waits) if wait.first_lsn <= self.position.next_lsn]
        return replace(self, waits=self.waits[begun[-1] :] if begun else self.waits)


def announce_ordered(cursor: psycopg.Cursor[Any], *, is_wanted: bool) -> None:
    """Say whether the topic is published from now on. Where it is not, a later start that wants it begins again."""
    if is_wanted:
        cursor.execute(_WANTED, [ORDERED_EVENTS])
    else:
        cursor.execute(_UNWANTED)


def read_progress(connection: psycopg.Connection[Any]) -> Progress | None:
    """The stored progress; None where the topic has not begun. Raises Fenced where it is not wanted any more."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_READ, [ORDERED_EVENTS]).fetchone()
    if row is None:
        raise Fenced(f"{ORDERED_EVENTS} is not published any more")
    if row["next_position"] is None:
        return None
    sent = None
    if row["sent_lsn"] is not None:
        sent = row["sent_generation"], _microseconds(row["sent_event_time"]), row["sent_lsn"]
    return Progress(
        Position(row["next_position"], row["input_table"], row["row_before"]),
        _microseconds(row["watermark"]),
        row["waiting_from"],
        row["sequence"],
        tuple(Wait(*wait) for wait in row["waits"]),
        sent,
    )


def move(connection: psycopg.Connection[Any], before: Progress | None, after: Progress, epoch: int) -> None:
    """Store `after` in the place of `before`, as the driver of this epoch.

    Raises Fenced where another publisher has moved meanwhile, or the driver was followed: what a driver that was frozen
    stores would end its successor's publisher.
    """
    generation, order_us, lsn = after.cursor or (None, NEVER_US, None)
    values = {
        "topic": ORDERED_EVENTS,
        "next_position": after.position.next_lsn,
        "input_table": after.position.table,
        "row_before": after.position.row,
        "watermark": _instant(after.watermark_us),
        "waiting_from": after.waiting_from,
        "sequence": after.sequence,
        "sent_generation": generation,
        "sent_event_time": _instant(order_us),
        "sent_lsn": lsn,
        "waits": Jsonb([[wait.first_lsn, wait.seconds] for wait in after.waits]),
        "was_next_position": None if before is None else before.position.next_lsn,
        "was_sequence": None if before is None else before.sequence,
        "epoch": epoch,
    }
    if connection.execute(_MOVE, values).rowcount == 0:
        raise Fenced(f"{ORDERED_EVENTS} was moved by another publisher")


def begun(position: Position, frontier: datetime | None, seconds: int) -> Progress:
    """The progress of a topic that begins with what is accepted from `position` on.

    `sequence` begins at the lsn: there are never more events than rows, so it is higher than any of before.
    """
    watermark = NEVER_US if frontier is None else microseconds_of(frontier - timedelta(seconds=seconds))
    next_lsn = position.next_lsn
    return Progress(position, watermark, next_lsn, next_lsn - 1, (Wait(next_lsn, seconds),))


def erasures(connection: psycopg.Connection[Any]) -> tuple[int, ...]:
    """How many people are to be forgotten, and how many were: it changes when an erasure begins or is complete."""
    row = connection.execute("SELECT count(*), count(erased_at) FROM erasures").fetchone()
    assert row is not None
    return tuple(row)


def behind_seconds(connection: psycopg.Connection[Any]) -> float | None:
    """BEHIND; None where the topic is not wanted."""
    row = connection.execute(BEHIND).fetchone()
    return None if row is None else float(row[0])


def _microseconds(instant: datetime | None) -> int:
    return NEVER_US if instant is None else microseconds_of(instant)


def _instant(microseconds: int) -> datetime | None:
    return None if microseconds == NEVER_US else _EPOCH + timedelta(microseconds=microseconds)
