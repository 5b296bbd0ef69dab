"""The outbox → Kafka, beside the fold: at least once, each window and each account's corrections in order.

A change leaves the outbox only after Kafka has committed it. Kafka fences a driver from the moment its successor begins
a transaction, and a publisher reads only after it has begun. So no older state of a window follows a newer one, and a
compacted topic ends with the newest. A publisher that cannot send waits and reports it, while billing continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import structlog
from confluent_kafka.admin import AdminClient

from jobs.billing.config import BillingConfig
from jobs.billing.messages import Message, correction_message, window_message
from jobs.billing.outbox import STEP_ROWS, Outbox, Row, announce
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.topic import list_partitions
from jobs.runtime.kafka.transactions import Transactions
from jobs.runtime.postgres.session import Session
from jobs.runtime.unreachable import in_a_line
from metering.vocabulary import Job, Published
from monitoring import metrics

NAME = "weir-billing"
"""Of its transactions in Kafka."""
CLOSE_SECONDS = 2.0
STATEMENT_TIMEOUT = "60s"
MESSAGES: Mapping[Published, Callable[[Row], Message]] = {
    Published.WINDOWS: window_message,
    Published.CORRECTIONS: correction_message,
}

log = structlog.get_logger()


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


class Publisher:
    """Sends the content of the outbox, as the driver of this epoch."""

    def __init__(
        self,
        postgres_url: str,
        kafka: KafkaSettings,
        topics: Sequence[Published],
        epoch: int,
        step_rows: int = STEP_ROWS,
    ) -> None:
        self._postgres_url = postgres_url
        self._kafka = kafka
        self.topics = tuple(topics)
        self._epoch = epoch
        self._outbox = Outbox(step_rows)
        self._connection: psycopg.Connection[Any] | None = None
        self._transactions: Transactions | None = None
        self._found: set[Published] = set()

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
            self._transactions = None
            self._found.clear()
            raise
        if step is None:
            return False
        self._outbox.sent(self._session(), topic, step.up_to)
        return step.is_full

    def coalesce(self) -> None:
        """Merge unsent rows while Kafka is unavailable."""
        self._outbox.coalesce(self._session())

    def _session(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = Session.to(
                self._postgres_url,
                f"weir {Job.BILLING} publisher",
                options=f"-c statement_timeout={STATEMENT_TIMEOUT}",
                is_patient=True,
            )
        return self._connection

    def _sender(self, topic: Published) -> Transactions:
        if self._transactions is None:
            self._refuse_if_followed()
            self._transactions = Transactions(self._kafka, NAME)
        if topic not in self._found:
            # This request does not make the broker create the topic with its default settings.
            list_partitions(AdminClient(self._kafka), [topic])
            self._found.add(topic)
        return self._transactions

    def _refuse_if_followed(self) -> None:
        found = self._session().execute("SELECT epoch FROM jobs WHERE job = %s", [Job.BILLING.value]).fetchone()
        if found != (self._epoch,):
            raise Fenced(f"{Job.BILLING}: epoch {self._epoch} was followed by {found and found[0]}")

    def close(self) -> None:
        """End the database session."""
        if self._connection is not None:
            self._connection.close()


class PublishingThread:
    """Publishes every `every_seconds` until closed, also after failures."""

    def __init__(self, publisher: Publisher, every_seconds: float) -> None:
        self._publisher = publisher
        self._every_seconds = every_seconds
        self._stopping = threading.Event()
        self._reasons: dict[Published, str] = {}
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with ExitStack() as held:
            held.callback(self._publisher.close)
            with suppress(Fenced):
                while not self._stopping.is_set():
                    for topic in self._publisher.topics:
                        self._publish(topic)
                    self._stopping.wait(self._every_seconds)

    def _publish(self, topic: Published) -> None:
        try:
            while not self._stopping.is_set() and self._publisher.publish(topic):
                pass
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 -- bills must not wait for any failure; it is reported
            self._waits(topic, f"{type(error).__name__}: {in_a_line(str(error))}")
        else:
            self._waits(topic, "")

    def _waits(self, topic: Published, reason: str) -> None:
        metrics.PUBLISHING_BLOCKED.set(float(bool(reason)), topic=topic.value)
        metrics.EARLIER_PUBLISHING_BLOCKED.set(float(bool(reason)), topic=topic.value)
        if reason != self._reasons.get(topic, ""):
            log.warning("publishing blocked" if reason else "publishing resumed", topic=topic.value, reason=reason)
        self._reasons[topic] = reason
        if reason and topic is Published.WINDOWS:
            with suppress(psycopg.Error):
                self._publisher.coalesce()

    def close(self) -> None:
        """Stop. What is not sent stays in the outbox."""
        self._stopping.set()
        # Without a broker it would take long, and nothing of it is lost.
        self._thread.join(CLOSE_SECONDS)
