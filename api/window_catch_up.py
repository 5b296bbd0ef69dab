"""Reads the topic `windows` for a client that lacks more than the feed has in memory: a portion at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from api.window_changes import Change, Progress, change_of, may_see
from api.window_feed import TOPIC, TRANSIENT
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.topic import COMMITTED

THREADS = 2
"""Clients that catch up at once; others wait for their portion."""
READ_RECORDS = 200
PORTION_BYTES = 2 << 20
PORTION_SECONDS = 5.0
POLL_SECONDS = 0.5
SETTINGS: KafkaSettings = {**COMMITTED, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
"""What is no offset of the topic, although the topic is the same, is read from its beginning: nothing is skipped."""


class CatchUp:
    """A few threads, each with a consumer of its own."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka: KafkaSettings = {**kafka, "log_level": 4}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="catch-up")
        self._own = threading.local()

    async def portion(
        self, progress: Progress, up_to: Mapping[int, int], accounts: Collection[str]
    ) -> tuple[Sequence[Change], Progress]:
        """Changes of these accounts (none: of all) on the way to `up_to`, and how far they reach.

        Raises KafkaException where Kafka says no; without an answer it gives what was read until then.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._portion, progress, dict(up_to), accounts
        )

    def close(self) -> None:
        """Take no further clients."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _portion(
        self, progress: Progress, up_to: Mapping[int, int], accounts: Collection[str]
    ) -> tuple[Sequence[Change], Progress]:
        reached = Progress(progress.topic_id, dict(progress.positions))
        behind = [part for part, end in up_to.items() if not reached.has_reached({part: end})]
        consumer, deadline, found = self._consumer(), time.monotonic() + PORTION_SECONDS, []
        consumer.assign([TopicPartition(TOPIC, part, reached.positions.get(part, 0)) for part in behind])
        try:
            size_bytes = 0
            while size_bytes < PORTION_BYTES and not reached.has_reached(up_to) and time.monotonic() < deadline:
                for message in consumer.consume(READ_RECORDS, POLL_SECONDS):
                    partition, offset = message.partition() or 0, message.offset() or 0
                    if (error := message.error()) is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            reached.reach(partition, offset)
                        elif error.code() not in TRANSIENT:
                            raise KafkaException(error)
                        continue
                    size_bytes += len(message)
                    reached.reach(partition, offset + 1)
                    change = change_of(message)
                    if change is not None and may_see(change, accounts):
                        found.append(change)
        finally:
            consumer.unassign()
        return found, reached

    def _consumer(self) -> Consumer:
        consumer: Consumer | None = getattr(self._own, "consumer", None)
        if consumer is None:
            consumer = self._own.consumer = Consumer({**self._kafka, **SETTINGS})
        return consumer
