"""Records sent all or none, by one sender at a time: a sender fences all earlier ones of its transactional id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Producer

from jobs.runtime.kafka.access import KafkaSettings

Headers = Sequence[tuple[str, bytes]]
Record = tuple[bytes, bytes] | tuple[bytes, bytes, Headers]
"""Key, value, and headers if there are any."""
MAX_RECORD_BYTES = 16 << 20
"""Of a record as it is sent. The topic's own limit may be lower."""
TIMEOUT_SECONDS = 15.0
"""A transaction that the brokers do not commit within this is started again."""
TRANSACTION_TIMEOUT_MS = 30_000
"""Readers of committed records wait so long for a producer that froze within a transaction."""
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
                # In few, large requests: a commit sends what is left at once.
                "linger.ms": 100,
                "message.max.bytes": MAX_RECORD_BYTES,
                # As Kafka's own clients do: one key reaches one partition from every sender.
                "partitioner": "murmur2_random",
            }
        )
        self._producer.init_transactions(TIMEOUT_SECONDS)

    def send(self, topic: str, records: Iterable[Record]) -> None:
        """Commit records, in this order.

        Raises KafkaException; then they are committed or never will be, once the next sender has begun.
        """
        self._producer.begin_transaction()
        for record in records:
            self._produce(topic, *record)
        self._producer.commit_transaction(TIMEOUT_SECONDS)

    def _produce(self, topic: str, key: bytes, value: bytes, headers: Headers = ()) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=list(headers))
            except BufferError:
                # Full; what no broker takes in time fails, and makes room.
                self._producer.poll(QUEUE_POLL_SECONDS)
            else:
                return
