"""Records that are dead letters regardless of content, each in its own topic: of events and of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import polars as pl
from deltalake import DeltaTable

from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.quarantine import is_quarantined, quarantined_places, skipped_in, verdicts
from jobs.runtime.kafka.quarantine.isolated_records import Isolated, IsolatedRecords
from jobs.runtime.postgres.ownership import Ownership


class IsolatedByTopic:
    """The isolated records of all topics, for the driver that reads them."""

    def __init__(self, ownership: Ownership, ledgers: Iterable[OffsetLedger], journal: DeltaTable) -> None:
        """Settle, at a start, what the last driver left (`IsolatedRecords.settle`)."""
        self._topics: dict[str, IsolatedRecords] = {}
        for ledger in ledgers:
            topic = ledger.topic
            self._topics[topic.name] = records = IsolatedRecords(ownership, topic)
            records.settle(ledger.positions(), lambda places, topic=topic: skipped_in(journal, topic, places))  # type: ignore[misc]

    def pending(self, topics: Iterable[str]) -> Mapping[str, Isolated]:
        """By topic, for these topics, the records that the journal does not have yet."""
        return {name: self._topics[name].pending() for name in sorted(set(topics))}

    def add(self, received: pl.DataFrame, validated: pl.DataFrame, known: Mapping[str, Isolated]) -> None:
        """Write down those of the next commit's records that Weir failed on or that are too large (`verdicts`)."""
        is_bad = validated.select(is_quarantined()).to_series()
        if not is_bad.any():
            return
        found = received.filter(is_bad).with_columns(validated.filter(is_bad).select("reason", "violation"))
        for name, rows in _by_topic(found):
            for verdict in verdicts(rows, rows, known.get(name, {})):
                self._topics[name].add(*verdict)

    def journalled(self, rows: pl.DataFrame) -> None:
        """The journal has these rows."""
        for name, part in _by_topic(rows.filter(is_quarantined())):
            self._topics[name].journalled(quarantined_places(part))


def _by_topic(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    for (name,), part in rows.partition_by("topic", as_dict=True).items():
        yield str(name), part
