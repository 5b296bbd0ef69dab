"""Catalog changes that are dead letters regardless of content: skipped, or the parser failed on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl
from confluent_kafka import Message
from deltalake import DeltaTable

from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.quarantine import quarantined_places, skipped_in, verdicts
from jobs.runtime.kafka.quarantine.isolated_records import Isolated, IsolatedRecords
from jobs.runtime.postgres.ownership import Ownership


class IsolatedChanges:
    """The isolated records of the catalog's topics, for the driver that reads them."""

    def __init__(self, ownership: Ownership, ledgers: Iterable[OffsetLedger], journal: DeltaTable) -> None:
        """Settle, at a start, what the last driver left (`IsolatedRecords.settle`)."""
        self._topics: dict[str, IsolatedRecords] = {}
        for ledger in ledgers:
            topic = ledger.topic
            self._topics[topic.name] = records = IsolatedRecords(ownership, topic)
            records.settle(ledger.positions(), lambda places, topic=topic: skipped_in(journal, topic, places))  # type: ignore[misc]

    def pending(self, changes: Sequence[Message]) -> Mapping[str, Isolated]:
        """By topic, for the topics of these changes, the records that the journal does not have yet."""
        names = {name for change in changes if (name := change.topic()) is not None}
        return {name: self._topics[name].pending() for name in names}

    def add(self, rows: pl.DataFrame) -> None:
        """Write down those of the next commit's rows that the parser failed on."""
        for name, part in _by_topic(rows):
            for verdict in verdicts(part, part, {}):
                self._topics[name].add(*verdict)

    def journalled(self, rows: pl.DataFrame) -> None:
        """The journal has these rows."""
        for name, part in _by_topic(rows):
            if places := quarantined_places(part):
                self._topics[name].journalled(places)


def _by_topic(rows: pl.DataFrame) -> Iterable[tuple[str, pl.DataFrame]]:
    return ((str(name), part) for (name,), part in rows.partition_by("topic", as_dict=True).items())
