"""Records from a web server to Kafka: a request waits until all its records are acknowledged by all replicas."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from api.problems import BYTES, Problem, over_capacity, unavailable
from jobs.runtime.kafka.heartbeat import is_fatal
from monitoring import metrics
from monitoring.metrics import Refusal

log = structlog.get_logger()

MAX_PENDING_BYTES = 32 << 20
"""Of records that no broker has acknowledged yet; more are refused until some are."""
ACKNOWLEDGED_WITHIN_SECONDS = 10.0
RETRY_AFTER_SECONDS = 2
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Record:
    """What is appended to a topic."""

    key: bytes | None
    value: bytes
    topic: str | None = None
    """Where it goes, if not to the topic of the request."""


@dataclass
class _Request:
    """The records of one request that are not acknowledged yet, and where the others are."""

    left: int
    answer: asyncio.Future[dict[tuple[str, int], int]]
    loop: asyncio.AbstractEventLoop
    last: dict[tuple[str, int], int] = field(default_factory=dict)
    error: KafkaError | None = None


class AcknowledgedProducer:
    """Appends records to topics, by librdkafka's settings `kafka`; `headers` go with each."""

    def __init__(self, kafka: Mapping[str, str | int | float | bool], headers: Mapping[str, bytes]) -> None:
        self._headers: list[tuple[str, str | bytes | None]] = list(headers.items())
        self._settings: dict[str, Any] = {
            **kafka,
            "log_level": 4,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            # The broker's limit is on a whole batch: a full one must not be refused for its size.
            "batch.size": 128 << 10,
            "delivery.timeout.ms": int(ACKNOWLEDGED_WITHIN_SECONDS * 1_000),
            "queue.buffering.max.kbytes": 2 * MAX_PENDING_BYTES >> 10,
            # As Kafka's own clients do: one key reaches one partition whoever sends it.
            "partitioner": "murmur2_random",
        }
        self._producer, self._is_dead = Producer(self._settings), False
        self._ending: list[Producer] = []
        """Producers with a fatal error, until they have reported the fate of their records."""
        self._pending_bytes, self._pending_records = 0, 0
        metrics.API_PENDING_RECORDS.set(0)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="producer", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that no broker has acknowledged yet."""
        return self._pending_bytes

    async def send(self, topic: str, records: Sequence[Record]) -> dict[tuple[str, int], int]:
        """Append records to `topic`, or to their own; returns the offset of the last one per topic and partition.

        It returns once all are acknowledged.

        Raises Problem: 429 while too much waits for the brokers, 503 when they do not acknowledge in time. Some of the
        records may be in the topic then; sending all of them again makes duplicates, which are billed once.
        """
        size_bytes = sum(len(record.value) for record in records)
        with self._lock:
            if self._pending_bytes and self._pending_bytes + size_bytes > MAX_PENDING_BYTES:
                raise _too_many()
            self._add_pending(size_bytes, len(records))
        if not records:
            return {}
        loop = asyncio.get_running_loop()
        request = _Request(len(records), loop.create_future(), loop)
        for record in records:
            self._produce(record.topic or topic, record, request)
        return await request.answer

    def close(self) -> None:
        """Wait for what is on its way, and stop."""
        with suppress(KafkaException):  # it has failed for good
            self._producer.flush(ACKNOWLEDGED_WITHIN_SECONDS)
        self._stopping.set()
        self._thread.join()
        self._producer.close()

    def _produce(self, topic: str, record: Record, request: _Request) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._delivered(len(record.value), request, error, message)

        try:
            self._producer.produce(topic, record.value, record.key, headers=self._headers, on_delivery=delivered)
        except BufferError:
            self._answered(len(record.value), request, KafkaError(KafkaError._QUEUE_FULL))
        except KafkaException as error:
            self._failed(error.args[0])
            self._answered(len(record.value), request, error.args[0])

    def _delivered(self, size_bytes: int, request: _Request, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed(error)
            self._answered(size_bytes, request, error)
            return
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        with self._lock:
            request.last[place] = max(offset, request.last.get(place, -1))
        self._answered(size_bytes, request, None)

    def _answered(self, size_bytes: int, request: _Request, error: KafkaError | None) -> None:
        with self._lock:
            self._add_pending(-size_bytes, -1)
            request.left -= 1
            request.error = request.error or error
            is_done = request.left == 0
        if is_done:
            with suppress(RuntimeError):  # the loop has ended, and who waited with it
                request.loop.call_soon_threadsafe(_finish, request)

    def _add_pending(self, size_bytes: int, records: int) -> None:
        """With the lock."""
        self._pending_bytes += size_bytes
        self._pending_records += records
        metrics.API_PENDING_RECORDS.set(self._pending_records)

    def _failed(self, error: KafkaError) -> None:
        self._is_dead = self._is_dead or is_fatal(error)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            if self._is_dead:
                # An idempotent producer goes on after nothing that it cannot put in order; a new one does.
                log.warning("the producer of events failed for good and is replaced")
                self._ending.append(self._producer)
                self._producer, self._is_dead = Producer(self._settings), False
            self._poll_once(self._producer, POLL_SECONDS)
            for producer in self._ending:
                self._poll_once(producer, 0)
            self._ending = [producer for producer in self._ending if len(producer)]

    def _poll_once(self, producer: Producer, timeout_seconds: float) -> None:
        try:
            producer.poll(timeout_seconds)
        except KafkaException as error:
            # A fatal error is raised here, once, in addition to callbacks.
            if producer is self._producer:
                self._failed(error.args[0])


def _finish(request: _Request) -> None:
    if request.answer.done():
        return  # the client has disconnected
    if request.error is None:
        request.answer.set_result(request.last)
        return
    reason = request.error.str()
    log.warning("records were not acknowledged", reason=reason)
    if request.error.code() == KafkaError._QUEUE_FULL:
        request.answer.set_exception(_too_many())
        return
    if request.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        detail = f"The topic does not take an event of this size ({reason}): raise its max.message.bytes, or send less."
        request.answer.set_exception(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail))
        return
    request.answer.set_exception(
        unavailable(f"Kafka did not acknowledge every event ({reason}): send the same request again.")
    )


def _too_many() -> Problem:
    return over_capacity(
        Refusal.KAFKA,
        "Kafka acknowledges more slowly than events come in: send the same request again later.",
        RETRY_AFTER_SECONDS,
        MAX_PENDING_BYTES,
        BYTES,
    )
