"""Sending records to Kafka: every one acknowledged by the broker or refused with its reason, in order per partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

LARGEST_RECORD_BYTES = 64 << 20
"""Far above what the broker takes, so that the broker is the one to refuse. A request above 100 MiB it would not even
answer."""

QUEUE_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Refusal:
    """A record that is not in the topic: its number, as given to the sender, and the reason."""

    number: int
    reason: str


class Sender:
    """Sends bytes as they are, to where librdkafka's settings `kafka` lead.

    `acknowledged` and `refused` are complete after `flush`. `next_offsets` holds, per topic and partition, the offset
    after the last acknowledged record; `longest_delay_ms` how long after the instant it was planned for a record was
    appended.
    """

    def __init__(self, kafka: Mapping[str, str | int | float | bool]) -> None:
        self._producer = Producer(
            {
                **kafka,
                "log_level": 4,
                "acks": "all",
                "enable.idempotence": True,
                "message.max.bytes": LARGEST_RECORD_BYTES,
                # The broker's limit is on a whole batch: a full one must not be refused for its size.
                "batch.size": 128 << 10,
                "queue.buffering.max.kbytes": 4 * LARGEST_RECORD_BYTES >> 10,
                "linger.ms": 20,
                "delivery.timeout.ms": 60_000,
                # As Kafka's own clients do: one key reaches one partition from every sender.
                "partitioner": "murmur2_random",
            }
        )
        self.acknowledged = 0
        self.refused: list[Refusal] = []
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.longest_delay_ms = 0

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        number: int = 0,
        planned_ms: int | None = None,
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Hand over one record; waits while the queue is full. `number` is what a refusal names it by."""
        on_delivery = partial(self._delivered, number, planned_ms)
        listed: list[tuple[str, str | bytes | None]] = [*(headers.items() if isinstance(headers, Mapping) else headers)]
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=on_delivery, headers=listed)
            except BufferError:
                self._producer.poll(QUEUE_POLL_SECONDS)
            except KafkaException as error:
                self.refused.append(Refusal(number, _reason(error.args[0])))
                return
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        """Wait until every record is acknowledged or refused."""
        while self._producer.flush(1.0):
            pass

    def wait(self, seconds: float) -> None:
        """Let time pass while acknowledgements come in."""
        self._producer.poll(seconds)

    def _delivered(self, number: int, planned_ms: int | None, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(Refusal(number, _reason(error)))
            return
        self.acknowledged += 1
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self.next_offsets[topic, partition] = max(offset + 1, self.next_offsets.get((topic, partition), 0))
        if planned_ms is not None:
            # The broker stamps records of this topic, and returns the stamp in the acknowledgement.
            self.longest_delay_ms = max(self.longest_delay_ms, message.timestamp()[1] - planned_ms)


def _reason(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
