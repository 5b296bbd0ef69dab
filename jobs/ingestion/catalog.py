"""Catalog changes for the journal: the `catalog.*` topics, read to their end before each batch of events.

Change capture and snapshots publish an account after its prices. So accounts are read first: an account that arrives
meanwhile waits for the next batch, and the prices of each account that was read are in their topic before its end is
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.received import INSTANT
from jobs.journal.catalog_problems import change_problem
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.quarantine.isolated_records import Isolated
from jobs.runtime.kafka.topic import Positions, TopicsReader, stamp
from jobs.streams import CatalogTopic
from metering.texts import encodable, error_text
from metering.vocabulary import Disposition, Reason

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "topic": pl.String,
    "partition": pl.Int32,
    "offset": pl.Int64,
    "stamped_at": INSTANT,
    "is_broker_stamp": pl.Boolean,
    "disposition": pl.String,
    "reason": pl.String,
    "violation": pl.String,
    "key": pl.Binary,
    "value": pl.Binary,
}
NO_ROWS = pl.DataFrame(schema={**SCHEMA, "received_at": INSTANT})
MAX_VIOLATION_CHARACTERS = 500
"""Of the error of a change: it may name as many fields as a record can have."""
GOOD_CHANGE = b'{"op":"c","after":{"plan":"standard"},"ts_ms":1}'
"""Of a plan. A parser that fails on it, too, is at fault itself, and no record is blamed."""
NONE_ISOLATED: Mapping[str, Isolated] = {}


def change_verdict(topic: str, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """The reason to reject a change and what it violates; None, None when it is accepted.

    A change that the parser fails on is `unreadable`: our error ends no driver.
    """
    try:
        problem = change_problem(topic, key, value)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 -- no error here ends a driver; it is in the dead letter
        change_problem(CatalogTopic.PLANS, None, GOOD_CHANGE)
        return Reason.UNREADABLE.value, "Weir: " + error_text(error, MAX_VIOLATION_CHARACTERS)
    if problem is None:
        return None, None
    return Reason.INVALID_CATALOG_CHANGE.value, encodable(problem, MAX_VIOLATION_CHARACTERS)


class CatalogReader:
    """Reads catalog changes as journal rows. A change that cannot be applied is rejected, like an event."""

    def __init__(self, kafka: KafkaSettings, admin: AdminClient, ledgers: Sequence[OffsetLedger]) -> None:
        self._ledgers = {ledger.topic.name: ledger for ledger in ledgers}
        accounts = [ledger for ledger in ledgers if ledger.topic.name == CatalogTopic.ACCOUNTS]
        others = [ledger for ledger in ledgers if ledger not in accounts]
        # One reader each, because a reader may read beyond the requested ends.
        self._readers = [_reader(kafka, admin, group) for group in (accounts, others)]

    def add(self, topic: str, positions: Mapping[int, int]) -> None:
        """Read partitions that the topic got, too."""
        accounts, others = self._readers
        reader = accounts if topic == CatalogTopic.ACCOUNTS else others
        reader.add({(topic, partition): at for partition, at in positions.items()})

    def read_to_end(self) -> tuple[list[Message], Positions]:
        """All changes up to now, and the positions after them. An account comes with what was published before it."""
        changes: list[Message] = []
        positions: dict[tuple[str, int], int] = {}
        for reader in self._readers:
            read, after = reader.read_to_end()
            changes += read
            positions |= after
        return changes, positions

    def has_news(self) -> bool:
        """Whether there are unread changes; the brokers have already sent what this checks."""
        return any(reader.has_news() for reader in self._readers)

    def rows(self, changes: Sequence[Message], isolated: Mapping[str, Isolated] = NONE_ISOLATED) -> pl.DataFrame:
        """Changes as journal rows with `received_at`, in the order of their append; `isolated`: by topic."""
        if not changes:
            return NO_ROWS
        rows = pl.DataFrame([_row(change, isolated) for change in changes], schema=SCHEMA, orient="row")
        received = [ledger.received(rows.filter(pl.col("topic") == name)) for name, ledger in self._ledgers.items()]
        return pl.concat(received).sort("received_at", "topic", "partition", "offset")

    def taken(self, positions: Positions, rows: pl.DataFrame) -> dict[str, int]:
        """The transactions that say how far the topics were read."""
        transactions: dict[str, int] = {}
        for name, ledger in self._ledgers.items():
            ends = {partition: at for (topic, partition), at in positions.items() if topic == name}
            if rows.is_empty() and ends.items() <= ledger.positions().items():
                # Nothing has come, as nearly always.
                continue
            transactions |= ledger.take(rows.filter(pl.col("topic") == name), ends)
        return transactions

    def close(self) -> None:
        """Leave the broker."""
        for reader in self._readers:
            reader.close()


def _reader(kafka: KafkaSettings, admin: AdminClient, ledgers: Sequence[OffsetLedger]) -> TopicsReader:
    positions = {(ledger.topic.name, p): at for ledger in ledgers for p, at in ledger.next_offsets().items()}
    return TopicsReader(kafka, admin, [ledger.topic for ledger in ledgers], positions)


def _row(change: Message, isolated: Mapping[str, Isolated]) -> tuple[Any, ...]:
    topic, partition, offset = change.topic(), change.partition(), change.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    if (isolation := isolated.get(topic, {}).get((partition, offset))) is None:
        reason, violation = change_verdict(topic, change.key(), change.value())
    else:
        reason, violation = isolation.value, None
    disposition = Disposition.ACCEPTED if reason is None else Disposition.REJECTED
    return topic, partition, offset, *stamp(change), disposition.value, reason, violation, change.key(), change.value()
