"""Offsets that no row has: proved to hold no record, by reading over them once more with a plain consumer.

Transactions leave markers and aborted records behind, which no reader gets. A record that a batch has lost leaves the
same hole, so a hole is believed only when a second reader finds it too.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from jobs.runtime.errors import Cause, NotYet, Refused
from jobs.runtime.kafka_access import KafkaSettings
from monitoring import metrics

PATIENCE_SECONDS = 30.0
"""How long a reader may get nothing before it gives up for now."""
NEAR_RECORDS = 10_000
"""Reading so many records costs about as much as starting to read elsewhere."""
NOWHERE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


@dataclass(frozen=True, order=True)
class Gap:
    """The offsets [first, end) of a partition, which a record follows."""

    partition: int
    first: int
    end: int


class AbsentOffsets:
    """Reads gaps of one topic again, only committed records, without a consumer group."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._consumer: Consumer | None = None

    def prove(self, gaps: Sequence[Gap]) -> dict[int, int]:
        """How many offsets per partition were proved to hold no record: all those of `gaps`.

        Raises Refused when one does, so that it was lost on its way; NotYet when the gaps cannot be read now.
        """
        proved: dict[int, int] = {}
        try:
            for passage in passages(gaps):
                self._read(passage)
                for gap in (gap for run in passage for gap in run):
                    proved[gap.partition] = proved.get(gap.partition, 0) + gap.end - gap.first
        except (Refused, NotYet, KafkaException):
            metrics.UNPROVED.set(sum(gap.end - gap.first for gap in gaps))
            raise
        metrics.UNPROVED.set(0)
        return proved

    def _read(self, passage: Sequence[Sequence[Gap]]) -> None:
        """Read over the gaps of several partitions, each from its first gap to its last."""
        awaited = {gaps[0].partition: gaps for gaps in passage}
        consumer = self._consumer = self._consumer or self._made()
        consumer.assign([TopicPartition(self._topic, p, gaps[0].first) for p, gaps in awaited.items()])
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while awaited:
                messages = consumer.consume(num_messages=1_000, timeout=0.2)
                if messages:
                    deadline = time.monotonic() + PATIENCE_SECONDS
                for message in messages:
                    self._check(message, awaited)
                if time.monotonic() > deadline:
                    raise NotYet(Cause.KAFKA, f"{self._topic}: {next(iter(awaited.values()))[0]} cannot be read again")
        finally:
            consumer.unassign()

    def _check(self, message: Message, awaited: dict[int, Sequence[Gap]]) -> None:
        """One record: it must lie in no gap; one behind the last gap of its partition ends its passage."""
        if (error := message.error()) is not None:
            if error.code() in NOWHERE:
                # The sink that is made anew looks what is left, and refuses when records are lost.
                raise NotYet(Cause.KAFKA, f"{self._topic}: offsets that were to be read again are gone: {error.str()}")
            raise KafkaException(error)
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        gaps = awaited.get(partition)
        if gaps is None:
            return
        before = bisect_right(gaps, offset, key=lambda gap: gap.first) - 1
        if before >= 0 and offset < gaps[before].end:
            raise Refused(
                f"{self._topic}[{partition}]: offset {offset} holds a record, but the batch that goes beyond it has "
                "none: it was lost on its way to ingestion, and going on would never bill it; start ingestion again: "
                "it reads the offset again. If this comes back, report it with this offset"
            )
        if offset >= gaps[-1].end:
            del awaited[partition]

    def _made(self) -> Consumer:
        return Consumer(
            {
                **self._kafka,
                "group.id": "weir",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": 16 << 10,
            }
        )

    def close(self) -> None:
        """Leave the broker."""
        if self._consumer is not None:
            self._consumer.close()


def passages(gaps: Iterable[Gap]) -> Iterator[list[list[Gap]]]:
    """Gaps that are read at once: of each partition those that are near to each other."""
    runs = [list(_runs(mine)) for _, mine in groupby(sorted(gaps), key=lambda gap: gap.partition)]
    for passage in zip_longest(*runs):
        yield [run for run in passage if run is not None]


def _runs(gaps: Iterable[Gap]) -> Iterator[list[Gap]]:
    run: list[Gap] = []
    for gap in gaps:
        if run and gap.first - run[-1].end > NEAR_RECORDS:
            yield run
            run = []
        run.append(gap)
    if run:
        yield run
