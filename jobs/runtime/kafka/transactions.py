"""Records sent all or none, by one sender at a time: a sender fences all earlier ones of its transactional id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from jobs.runtime.kafka.access import KafkaSettings

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[bytes, bytes] | tuple[bytes, bytes, Headers]
"""Key, value, and headers if there are any."""
MAX_RECORD_BYTES = 1_000_000_000
"""The most that librdkafka allows. It is of a record before compression, so the topic's limit of a batch decides."""
TIMEOUT_SECONDS = 15.0
"""A transaction that the brokers do not commit within this is started again."""
TRANSACTION_TIMEOUT_MS = 30_000
"""Readers of committed records wait so long for a producer that froze within a transaction.

Brokers look every ten seconds (`transaction.abort.timed.out.transaction.cleanup.interval.ms`), and then abort it.
"""
QUEUE_POLL_SECONDS = 0.1


class Transactions:
    """A sender, under `name`. It cannot be used after an error: begin another.

    Once it is made it is the newest of its name, and the brokers refuse all others from then on, also what they have
    sent and not committed yet. Raises KafkaException when no broker answers, or this user is not authorized.
    """

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._producer = Producer(
            {
                **kafka,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "compression.type": "lz4",
                # In few requests: a commit sends what is left at once.
                "linger.ms": 100,
                "message.max.bytes": MAX_RECORD_BYTES,
                # The topic's limit is on a whole batch: a full one must not be refused for its size.
                "batch.size": 128 << 10,
                # As Kafka's own clients do: one key reaches one partition from every sender.
                "partitioner": "murmur2_random",
                # Of what is delivered nothing is called in Python.
                "delivery.report.only.error": True,
            }
        )
        self._producer.init_transactions(TIMEOUT_SECONDS)

    def send(self, topic: str, records: Iterable[Record], before_commit: Callable[[], object] | None = None) -> None:
        """Commit records, in this order; `before_commit` is called when brokers have all, and may still prevent it.

        Raises KafkaException; then they are committed or never will be, once the next sender has begun. What
        `before_commit` raises, too: then they are not.
        """
        refused: list[tuple[KafkaError, int]] = []

        def failed(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append((error, len(message.value() or b"")))

        try:
            self._producer.begin_transaction()
            for record in records:
                self._produce(topic, failed, *record)
            if before_commit is not None:
                self._flush(before_commit)
            self._producer.commit_transaction(TIMEOUT_SECONDS)
        except KafkaException as error:
            _refuse_large(topic, error, refused)
            raise

    def _flush(self, before_commit: Callable[[], object]) -> None:
        # From its first record on the brokers know the transaction, and abort it if this process freezes from here on.
        if self._producer.flush(TIMEOUT_SECONDS):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the brokers do not take the records"))
        try:
            before_commit()
        except Exception:
            with suppress(KafkaException):
                self._producer.abort_transaction(TIMEOUT_SECONDS)
            raise

    def _produce(
        self,
        topic: str,
        failed: Callable[[KafkaError | None, Message], None],
        key: bytes,
        value: bytes,
        headers: Headers | None = None,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=failed)
            except BufferError:
                # Full; what no broker takes in time fails, and makes room.
                self._producer.poll(QUEUE_POLL_SECONDS)
            else:
                return

    def close(self) -> None:
        """End it, without waiting for brokers: what is not committed they abort for the next sender, or in time."""
        del self._producer


def _refuse_large(topic: str, error: KafkaException, refused: Sequence[tuple[KafkaError, int]]) -> None:
    """Raise what says which limit it was, if a record was too large: the error of the commit does not."""
    sizes = [size for reason, size in refused if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE]
    if sizes:
        text = f"{topic} refuses a record of {max(sizes)} bytes: raise its max.message.bytes"
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, text)) from error
