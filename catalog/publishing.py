"""Catalog changes told as Debezium would tell them, where it does not run or shall be seen to tell them late."""

from __future__ import annotations

from collections.abc import Sequence

from catalog.change import Change, compact_json, envelope
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from deployment.sender import Sender

Offsets = dict[tuple[str, int], int]
"""The offset after the last of some records, per topic and partition."""


def publish(bootstrap: str, changes: Sequence[Change]) -> Offsets:
    """Send each change to its topic; gives the offset after the last one, per topic and partition.

    Raises CannotRun when the broker refuses one.
    """
    sender = Sender(kafka_client(bootstrap))
    for number, change in enumerate(changes):
        key, value = compact_json(change.key), compact_json(envelope(change))
        sender.send(change.topic.value, key.encode(), value.encode(), number=number)
    sender.flush()
    if sender.refused:
        refusal = sender.refused[0]
        raise CannotRun(
            f"The broker refused {len(sender.refused)} changes of the catalog ({changes[refusal.number].topic} "
            f"{changes[refusal.number].key}: {refusal.reason})."
        )
    return sender.next_offsets
