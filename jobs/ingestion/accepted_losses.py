"""Records that were deleted before they were read, where an operator has accepted it (`weir journal accept-loss`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

_READ = """
SELECT topic, partition, first_offset, end_offset, reason, accepted_by FROM accepted_losses WHERE topic_id = %s
ORDER BY accepted_at
"""
_SETTLE = """
UPDATE accepted_losses SET journalled_at = clock_timestamp()
WHERE topic_id = %s AND partition = %s AND end_offset <= %s AND journalled_at IS NULL
"""


@dataclass(frozen=True)
class Loss:
    """Offsets [first, end) of a partition that nobody can read any more, and who accepted that, and why."""

    topic: str
    partition: int
    first: int
    end: int
    reason: str
    accepted_by: str


def read_losses(connection: psycopg.Connection[Any], topic_id: str) -> list[Loss]:
    """What was accepted for a topic, the latest last. Those of the past are among them: tables may be restored."""
    return [Loss(*row) for row in connection.execute(_READ, [topic_id]).fetchall()]


def losses_at(accepted: Iterable[Loss], positions: Mapping[int, int], earliest: Mapping[int, int]) -> dict[int, Loss]:
    """Per partition what is lost between its position and the first offset that Kafka still has.

    Only where all of it was accepted: what retention took since then is not.
    """
    found = {}
    for loss in accepted:
        position, first_left = positions.get(loss.partition), earliest.get(loss.partition)
        if position is not None and first_left is not None and loss.first <= position < first_left <= loss.end:
            found[loss.partition] = replace(loss, first=position, end=first_left)
    return found


def rules_entry(losses: Iterable[Loss]) -> Mapping[str, Any]:
    """What the journal's `rules` say of losses that a commit passes; `to` is included. Nothing without one."""
    found = [
        {
            "topic": loss.topic,
            "partition": loss.partition,
            "from": loss.first,
            "to": loss.end - 1,
            "reason": loss.reason,
            "accepted_by": loss.accepted_by,
        }
        for loss in losses
    ]
    return {"lost": found} if found else {}


def settle_losses(cursor: psycopg.Cursor[Any], topic_id: str, positions: Mapping[int, int]) -> None:
    """Note which the journal has passed."""
    for partition, position in positions.items():
        cursor.execute(_SETTLE, [topic_id, partition, position])
