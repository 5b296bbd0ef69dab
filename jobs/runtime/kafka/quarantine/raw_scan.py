"""A raw scan of the next records of a topic: their sizes and contents, however they are packed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka.admin import AdminClient

from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.protocol.leaders import leaders
from jobs.runtime.kafka.protocol.log_records import LogRecord, records_of
from jobs.runtime.kafka.protocol.record_batches import batches_of, committed
from jobs.runtime.kafka.protocol.wire import Broker
from jobs.runtime.kafka.topic import EARLIEST, Topic, offsets

FETCH_BYTES = 1 << 20
SAMPLE = 1_000
MAX_UNPACKED_BYTES = 8 << 30
"""About a second: thousands of large records packed into few bytes must not hold a driver up for long."""


class RawScan:
    """Reads committed records of one topic from given positions on. It holds only what it returns in memory."""

    def __init__(self, access: KafkaAccess, admin: AdminClient, topic: Topic) -> None:
        self._access = access
        self._topic = topic
        self._earliest = offsets(admin, topic, EARLIEST)
        self._leaders = leaders(admin, topic.name, topic.partitions)

    def next_records(
        self,
        positions: Mapping[int, int],
        most: int,
        budget_bytes: int,
        largest_bytes: int,
        *,
        only: int | None = None,
    ) -> list[LogRecord]:
        """At most `most` records, about in the order of their stamps; of each partition those that come next.

        A partition without a position starts at its beginning; `only`: of this one alone. The partitions share the
        budget, but of each at least one record comes. Of one above `largest_bytes` only what it is, and so of what
        cannot be read here (`LogRecord.problem`). Raises KafkaException.
        """
        partitions = self._topic.partitions if only is None else (only,)
        share_bytes = max(1, budget_bytes // max(1, len(partitions)))
        found: list[tuple[int, LogRecord]] = []
        for partition in partitions:
            position = positions.get(partition, self._earliest[partition])
            latest_ms, held_bytes, unpacked_bytes = 0, 0, 0
            for record in itertools.islice(self._records(partition, position, largest_bytes), most):
                # As `received_at`: a broker's clock that steps back changes no order within a partition.
                latest_ms = max(latest_ms, record.timestamp_ms)
                found.append((latest_ms, record))
                held_bytes += len(record.key or b"") + len(record.value or b"") + len(record.headers or "")
                unpacked_bytes += record.size_bytes
                if held_bytes >= share_bytes or unpacked_bytes >= MAX_UNPACKED_BYTES:
                    break
        found.sort(key=lambda stamped: (stamped[0], stamped[1].partition, stamped[1].offset))
        return [record for _, record in found[:most]]

    def _records(self, partition: int, position: int, largest_bytes: int) -> Iterator[LogRecord]:
        with Broker(self._access, *self._leaders[partition]) as broker:
            while True:
                fetched = broker.fetch(self._topic.name, partition, position, FETCH_BYTES)
                try:
                    batches = list(batches_of(fetched.batches))
                except ValueError as error:
                    yield LogRecord(partition, position, 0, False, 0, None, None, f"{error}")
                    return
                if not batches:
                    return
                for batch in committed(batches, fetched.aborted):
                    yield from records_of(batch, partition, position, largest_bytes)
                position = batches[-1].last_offset + 1


def average_record_bytes(
    look: RawScan, positions: Mapping[int, int], largest_bytes: int, further_bytes: Callable[[bytes], int] = lambda _: 0
) -> int:
    """Mean size of the next records to read, unpacked, from a sample: key, value and the text of the headers.

    It is 1 when there is none. Larger ones than `largest_bytes` count as that: only so much is read. A record of
    unknown size counts the same. `further_bytes`: what derived values take besides.
    """
    sample = look.next_records(positions, SAMPLE, FETCH_BYTES, largest_bytes)
    sizes = [largest_bytes if record.is_unknown else min(record.size_bytes, largest_bytes) for record in sample]
    sizes += [len(record.headers) for record in sample if record.headers is not None]
    sizes += [further_bytes(record.value) for record in sample if record.value is not None]
    return max(1, sum(sizes) // max(1, len(sample)))
