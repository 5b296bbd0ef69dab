"""Publishes catalog changes as Debezium would, where it does not run, or where a test delays them."""

from __future__ import annotations

from collections.abc import Sequence

from catalog.change import Change, compact_json, envelope
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from deployment.sender import Sender
from jobs.streams import CatalogTopic

Offsets = dict[tuple[str, int], int]
"""The offset after the last of some records, per topic and partition."""


def publish(bootstrap: str, changes: Sequence[Change]) -> Offsets:
    """Send each change to its topic; gives the offset after the last one, per topic and partition.

    Raises CannotRun when the broker refuses one.
    """
    records = [(c.topic, compact_json(c.key), compact_json(envelope(c)).encode()) for c in changes]
    return _send(bootstrap, records)


def forget(bootstrap: str, topic: CatalogTopic, keys: Sequence[str]) -> None:
    """Send a tombstone for each key: compaction removes the earlier records. Raises CannotRun, as `publish`."""
    _send(bootstrap, [(topic, key, None) for key in keys])


def _send(bootstrap: str, records: Sequence[tuple[CatalogTopic, str, bytes | None]]) -> Offsets:
    sender = Sender(kafka_client(bootstrap))
    for number, (topic, key, value) in enumerate(records):
        sender.send(topic.value, key.encode(), value, number=number)
    sender.flush()
    if sender.refused:
        refusal = sender.refused[0]
        topic, key, _ = records[refusal.number]
        raise CannotRun(
            f"The broker refused {len(sender.refused)} changes of the catalog ({topic} {key}: {refusal.reason})."
        )
    return sender.next_offsets
