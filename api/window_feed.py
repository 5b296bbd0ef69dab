"""The end of the topic `windows` in memory: one thread reads it for all clients of this server, from the first one on.

A client that lacks more than what is in memory reads the topic itself until it has that (`window_catch_up`). So memory
is bounded whatever clients do, and a slow one keeps no other waiting.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from api.problems import unavailable
from api.window_changes import Change, Progress, change_of
from jobs.runtime.errors import NotYet
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.topic import COMMITTED, LATEST, list_partitions, offsets
from metering.vocabulary import Published

log = structlog.get_logger()

TOPIC = Published.WINDOWS.value
MAX_BYTES = 16 << 20
"""Of the newest changes that are in memory."""
READ_RECORDS = 500
READ_SECONDS = 0.2
RETRY_SECONDS = 2.0
LOOK_SECONDS = 5.0
"""How often it is looked whether the topic has further partitions, or is another one."""
START_SECONDS = 10.0
"""How long the first client may wait until the topic is read."""
TRANSIENT = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
"""Errors that librdkafka only reports: it goes on by itself."""
NOT_IN_THE_LOG = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
"""The topic no more has the offset that is to be read: its end was lost with a broker, or its beginning was removed."""


class WindowFeed:
    """The newest changes, in the order in which they were read. Its methods are for the event loop's thread alone."""

    def __init__(self, kafka: KafkaSettings, max_bytes: int = MAX_BYTES) -> None:
        self._kafka: KafkaSettings = {**kafka, "log_level": 4}
        self._max_bytes = max_bytes
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._read = Progress("")
        """How far the thread has read, for itself alone: the event loop may be behind with what it was given."""
        self._restarts = 0
        """How often the thread has begun at the end anew, for itself alone."""
        self.restarts = 0
        """The same: what a client has from before may not go on from here."""
        self._reset("", {})
        self._grown = asyncio.Event()

    def _reset(self, topic_id: str, ends: dict[int, int]) -> None:
        self.topic_id = topic_id
        """Of the topic that is read; empty before it was found."""
        self._starts, self._ends = dict(ends), dict(ends)
        self._changes: dict[int, Change] = {}
        self._first, self._next, self._bytes = 0, 0, 0

    @property
    def starts(self) -> dict[int, int]:
        """By partition: everything from this offset on is in memory."""
        return self._starts

    @property
    def end(self) -> Progress:
        """What a client has that has everything up to now."""
        return Progress(self.topic_id, dict(self._ends))

    async def start(self) -> None:
        """Read the topic from its end on, if that is not done yet. Raises Problem (503) where it cannot be read."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=[asyncio.get_running_loop()], name="windows", daemon=True
            )
            self._thread.start()
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self.topic_id:
                    await self._grown.wait()
        except TimeoutError:
            raise unavailable(
                f"The topic {TOPIC} cannot be read: billing does not publish it, or Kafka does not answer."
            ) from None

    async def wait(self, seconds: float) -> None:
        """Return when there is something new, or after this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._grown.wait()
        except TimeoutError:
            pass

    def read(self, place: int, limit: int) -> tuple[Sequence[Change], int]:
        """At most `limit` changes from a place on, in their order, and the next place; 0 is the first in memory."""
        first = max(place, self._first)
        last = min(first + limit, self._next)
        return [self._changes[number] for number in range(first, last)], last

    async def lacks(self, progress: Progress) -> bool:
        """Whether the topic ends before a position, so that records of before are lost. Raises Problem (503)."""
        if self.end.has_reached(progress.positions):
            return False
        # The feed may be behind another server's, or before the marker of a transaction: the log itself says it.
        try:
            ends = await asyncio.to_thread(self._log_ends)
        except (KafkaException, NotYet):
            raise unavailable(f"Kafka does not say where the topic {TOPIC} ends.") from None
        return any(ends.get(partition, position) < position for partition, position in progress.positions.items())

    def _log_ends(self) -> dict[int, int]:
        admin = AdminClient(self._kafka)
        (topic,) = list_partitions(admin, [TOPIC])
        return offsets(admin, topic, LATEST)

    def close(self) -> None:
        """Stop reading."""
        self._stopping.set()

    def _found(self, topic_id: str, ends: dict[int, int], restarts: int = 0) -> None:
        """The topic is read from these offsets on; of one that is known, new partitions are."""
        if topic_id != self.topic_id or restarts != self.restarts:
            self.restarts = restarts
            place = self._next
            self._reset(topic_id, ends)
            self._first = self._next = place
        self._starts, self._ends = ends | self._starts, ends | self._ends
        self._wake()

    def _append(self, changes: Sequence[Change], ends: dict[int, int]) -> None:
        for change in changes:
            self._changes[self._next] = change
            self._next += 1
            self._bytes += len(change.event)
        self._ends |= ends
        while self._bytes > self._max_bytes:
            oldest = self._changes.pop(self._first)
            self._first += 1
            self._bytes -= len(oldest.event)
            self._starts[oldest.partition] = max(oldest.offset + 1, self._starts.get(oldest.partition, 0))
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            try:
                self._follow(loop)
            except (KafkaException, NotYet) as error:
                log.warning("changes of windows cannot be read", reason=str(error).partition("\n")[0])
                if isinstance(error, KafkaException) and error.args[0].code() in NOT_IN_THE_LOG:
                    # The same offset would be refused for ever.
                    self._read, self._restarts = Progress(""), self._restarts + 1
                    continue
                self._stopping.wait(RETRY_SECONDS)
            except Exception as error:
                # A thread that ended would leave all streams with heartbeats alone.
                if loop.is_closed():
                    return
                log.error("changes of windows cannot be read", exc_info=error)
                self._stopping.wait(RETRY_SECONDS)

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read until stopped, or until the topic has changed.

        Whoever calls again, also after an error, has it go on where it was, unless the topic was made again or does
        not have that offset any more: then it begins at the end.
        """
        admin = AdminClient(self._kafka)
        (topic,) = list_partitions(admin, [TOPIC])
        if topic.topic_id != self._read.topic_id:
            ends = offsets(admin, topic, LATEST, IsolationLevel.READ_COMMITTED)
            self._read = Progress(topic.topic_id, ends)
        positions = {partition: self._read.positions.get(partition, 0) for partition in topic.partitions}
        loop.call_soon_threadsafe(self._found, topic.topic_id, positions, self._restarts)
        consumer = Consumer({**self._kafka, **COMMITTED})
        try:
            consumer.assign([TopicPartition(TOPIC, *position) for position in positions.items()])
            look_at = time.monotonic() + LOOK_SECONDS
            while not self._stopping.is_set():
                self._take(consumer.consume(READ_RECORDS, READ_SECONDS), loop)
                if time.monotonic() >= look_at:
                    if list_partitions(admin, [TOPIC]) != [topic]:
                        return
                    look_at = time.monotonic() + LOOK_SECONDS
        finally:
            consumer.close()

    def _take(self, messages: Sequence[Message], loop: asyncio.AbstractEventLoop) -> None:
        """Give what was read to the event loop. Raises KafkaException for an error that does not pass by itself."""
        changes, ends = [], {}
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() in TRANSIENT:
                    continue
                raise KafkaException(error)
            ends[message.partition() or 0] = (message.offset() or 0) + 1
            if (change := change_of(message)) is not None:
                changes.append(change)
        if ends:
            loop.call_soon_threadsafe(self._append, changes, ends)
            self._read.positions |= ends
