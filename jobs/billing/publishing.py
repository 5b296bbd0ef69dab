"""The outbox → Kafka, beside the fold: at least once, each window and each account's corrections in order.

A change leaves the outbox only after Kafka has committed it. Kafka fences a driver from the moment its successor begins
a transaction, and a publisher reads only after it has begun. So no older state of a window follows a newer one, and a
compacted topic ends with the newest. A publisher that cannot send waits and reports it, while billing continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Generic, Protocol, TypeVar

import psycopg
import structlog

from jobs.billing.config import BillingConfig
from jobs.billing.messages import Message, correction_message, window_message
from jobs.billing.outbox import STEP_ROWS, Outbox, Row, announce
from jobs.billing.sending import Sending
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.unreachable import in_a_line
from metering.vocabulary import Published
from monitoring import metrics

NAME = "weir-billing"
"""Of its transactions in Kafka."""
CLOSE_SECONDS = 2.0
MESSAGES: Mapping[Published, Callable[[Row], Message]] = {
    Published.WINDOWS: window_message,
    Published.CORRECTIONS: correction_message,
}

T = TypeVar("T", bound=str)

log = structlog.get_logger()


class Publishes(Protocol[T]):
    """Something that sends a step of each of its topics when it is asked to."""

    topics: tuple[T, ...]

    def publish(self, topic: T, /) -> bool:
        """Send a step of it. Whether there is more at once. Raises Fenced when this driver was followed."""

    def blocked(self, topic: T, /) -> None:
        """Called after each step that failed."""

    def close(self) -> None:
        """Give back what it holds."""


@contextmanager
def publishing(context: Context[BillingConfig]) -> Iterator[None]:
    """Publish what the configuration names for as long as the block runs."""
    with context.ownership.transaction() as cursor:
        announce(cursor, context.config.publish)
    if not context.config.publish:
        yield
        return
    publisher = Publisher(
        context.environment.postgres_url,
        context.environment.kafka.librdkafka(),
        context.config.publish,
        context.ownership.epoch,
    )
    thread = PublishingThread(publisher, context.config.publish_every_seconds)
    try:
        yield
    finally:
        thread.close()


class Publisher(Sending):
    """Sends the content of the outbox, as the driver of this epoch."""

    def __init__(
        self,
        postgres_url: str,
        kafka: KafkaSettings,
        topics: Sequence[Published],
        epoch: int,
        step_rows: int = STEP_ROWS,
    ) -> None:
        super().__init__(postgres_url, kafka, NAME, epoch)
        self.topics = tuple(topics)
        self._outbox = Outbox(step_rows)

    def publish(self, topic: Published) -> bool:
        """Send a step of it. Whether there is more at once.

        Raises KafkaException, NotYet or psycopg.Error when it cannot now (what is not taken away is sent again), Fenced
        when this driver was followed.
        """
        try:
            # Begin before reading: from now on no earlier publisher can send anything.
            sender = self._sender(topic)
            step = self._outbox.next(self._session(), topic)
            if step is not None:
                sender.send(topic.value, map(MESSAGES[topic], step.rows))
        except Exception:
            self._start_again()
            raise
        if step is None:
            return False
        self._outbox.sent(self._session(), topic, step.up_to)
        return step.is_full

    def blocked(self, topic: Published) -> None:
        """Merge unsent rows while Kafka is unavailable."""
        if topic is Published.WINDOWS:
            self._outbox.coalesce(self._session())


class PublishingThread(Generic[T]):
    """Publishes every `every_seconds` until closed, also after failures."""

    def __init__(self, publisher: Publishes[T], every_seconds: float) -> None:
        self._publisher = publisher
        self._every_seconds = every_seconds
        self._stopping = threading.Event()
        self._reasons: dict[T, str] = {}
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._publisher), suppress(Fenced):
            while not self._stopping.is_set():
                for topic in self._publisher.topics:
                    self._publish(topic)
                self._stopping.wait(self._every_seconds)

    def _publish(self, topic: T) -> None:
        try:
            while not self._stopping.is_set() and self._publisher.publish(topic):
                pass
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 -- bills must not wait for any failure; it is reported
            self._waits(topic, f"{type(error).__name__}: {in_a_line(str(error))}")
        else:
            self._waits(topic, "")

    def _waits(self, topic: T, reason: str) -> None:
        metrics.PUBLISHING_BLOCKED.set(float(bool(reason)), topic=str(topic))
        metrics.EARLIER_PUBLISHING_BLOCKED.set(float(bool(reason)), topic=str(topic))
        if reason != self._reasons.get(topic, ""):
            log.warning("publishing blocked" if reason else "publishing resumed", topic=str(topic), reason=reason)
        self._reasons[topic] = reason
        if reason:
            with suppress(psycopg.Error):
                self._publisher.blocked(topic)

    def close(self) -> None:
        """Stop. What is not sent stays in the outbox."""
        self._stopping.set()
        # Without a broker it would take long, and nothing of it is lost.
        self._thread.join(CLOSE_SECONDS)
