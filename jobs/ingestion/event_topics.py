"""The topics of events, each with its own ledger; what was received of all of them decides F."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from jobs.ingestion.accepted_losses import Loss
from jobs.ingestion.broker_clock import Look, wait_for_stamps
from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.received import Restamp
from jobs.runtime.kafka.protocol.absent_offsets import AbsentOffsets
from jobs.runtime.kafka.topic import Topic
from metering.instants import EPOCH


@dataclass(frozen=True)
class EventTopic:
    """One of the topics: what the journal has of it, and who reads its gaps again."""

    ledger: OffsetLedger
    absent: AbsentOffsets

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.ledger.topic.name


class EventTopics:
    """All of them. What comes and goes as rows has the column `topic`; positions are by topic and partition."""

    def __init__(self, topics: Sequence[EventTopic]) -> None:
        self._topics = tuple(topics)

    @property
    def ledgers(self) -> tuple[OffsetLedger, ...]:
        """One per topic, in their order."""
        return tuple(topic.ledger for topic in self._topics)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """As the broker knows them."""
        return tuple(ledger.topic for ledger in self.ledgers)

    def positions(self) -> Mapping[str, Mapping[int, int]]:
        """The next offset by topic and partition, of those partitions that have been read."""
        return {topic.name: topic.ledger.positions() for topic in self._topics}

    def frontier(self) -> datetime | None:
        """F: the smallest of the topics'. A topic that has not been heard of holds it where it is."""
        reached = list(self.frontiers().values())
        return min((at for at in reached if at is not None), default=None) if None not in reached else None

    def frontiers(self) -> dict[str, datetime | None]:
        """What each topic has reached; None: one of its partitions was not heard of."""
        return {topic.name: topic.ledger.frontier() for topic in self._topics}

    def forget_receptions(self, after: datetime) -> None:
        """Let no partition have come further than this, or than F."""
        for ledger in self.ledgers:
            ledger.forget_receptions(after)

    def wait_for_stamps(self, records: pl.DataFrame, seen: Look, limit: timedelta) -> None:
        """Raise NotYet when records of a topic are stamped too far in the future."""
        for topic in self._topics:
            wait_for_stamps(self._of(topic, records), topic.name, seen.now, seen.restamps.get(topic.name, ()), limit)

    def received(self, records: pl.DataFrame, restamps: Mapping[str, Sequence[Restamp]]) -> pl.DataFrame:
        """New records with `received_at`, by topic, partition and offset; `restamps` by topic."""
        # Before there is an F, a ledger may have one of its own, which a driver does not know after a restart.
        floor = self.frontier() or EPOCH
        return self._together(
            [
                topic.ledger.received(self._of(topic, records), restamps.get(topic.name, ()), floor)
                for topic in self._topics
            ]
        )

    def proved(self, records: pl.DataFrame) -> dict[str, dict[int, int]]:
        """How many offsets before and between received records hold no record, by topic and partition.

        Raises as `AbsentOffsets.prove`.
        """
        return {topic.name: topic.absent.prove(topic.ledger.gaps(self._of(topic, records))) for topic in self._topics}

    def take(self, rows: pl.DataFrame, proved: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
        """Account for new rows, one a record; the transactions that record it. Raises as `OffsetLedger.take`."""
        transactions: dict[str, int] = {}
        for topic in self._topics:
            transactions |= topic.ledger.take(self._of(topic, rows), proved=proved[topic.name])
        return transactions

    @property
    def absent_in_last_take(self) -> int:
        """How many offsets of the last take held no record."""
        return sum(ledger.absent_in_last_take for ledger in self.ledgers)

    @property
    def lost_in_last_take(self) -> tuple[Loss, ...]:
        """What it passed because an operator has accepted that it is lost."""
        return tuple(loss for ledger in self.ledgers for loss in ledger.lost_in_last_take)

    def _of(self, topic: EventTopic, rows: pl.DataFrame) -> pl.DataFrame:
        return rows if len(self._topics) == 1 else rows.filter(pl.col("topic") == topic.name)

    @staticmethod
    def _together(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return parts[0] if len(parts) == 1 else pl.concat(parts)


def slowest(frontiers: Mapping[str, datetime | None]) -> dict[str, Any]:
    """Of several topics that with the oldest frontier, as `jobs.progress` has it: its name, and how many seconds it is
    behind the newest; null where a partition of it was not heard of. Nothing of one topic.
    """
    if len(frontiers) == 1:
        return {}
    unheard = [name for name, at in frontiers.items() if at is None]
    known = {name: at for name, at in frontiers.items() if at is not None}
    name = unheard[0] if unheard else min(known, key=lambda topic: known[topic])
    behind = None if unheard else (max(known.values()) - known[name]).total_seconds()
    return {"slowest_topic": name, "slowest_topic_seconds": behind}
