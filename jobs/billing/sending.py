"""What each publisher of billing has: transactions of Kafka that fence earlier drivers, and a database session."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient

from jobs.runtime.errors import Fenced
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.topic import list_partitions
from jobs.runtime.kafka.transactions import Transactions
from jobs.runtime.postgres.session import Session
from metering.vocabulary import Job

TIMEOUTS = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"
"""A publisher that is frozen keeps no lock for longer."""


class Sending:
    """Sends as the driver of this epoch, under `name` in Kafka."""

    def __init__(self, postgres_url: str, kafka: KafkaSettings, name: str, epoch: int) -> None:
        self._postgres_url = postgres_url
        self._kafka = kafka
        self._name = name
        self._epoch = epoch
        self._connection: psycopg.Connection[Any] | None = None
        self._transactions: Transactions | None = None
        self._found: set[str] = set()

    def _session(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = Session.to(
                self._postgres_url, f"weir {Job.BILLING} publisher", options=TIMEOUTS, is_patient=True
            )
        return self._connection

    def _sender(self, topic: str) -> Transactions:
        if self._transactions is None:
            self._refuse_if_followed()
            self._transactions = Transactions(self._kafka, self._name)
        if topic not in self._found:
            # This request does not make the broker create the topic with its default settings.
            list_partitions(AdminClient(self._kafka), [topic])
            self._found.add(topic)
        return self._transactions

    def _refuse_if_followed(self) -> None:
        found = self._session().execute("SELECT epoch FROM jobs WHERE job = %s", [Job.BILLING.value]).fetchone()
        if found != (self._epoch,):
            raise Fenced(f"{Job.BILLING}: epoch {self._epoch} was followed by {found and found[0]}")

    def _start_again(self) -> None:
        """After a failure: the next sender ends what this one has not committed."""
        transactions, self._transactions = self._transactions, None
        self._found.clear()
        if transactions is not None:
            transactions.close()

    def close(self) -> None:
        """End the database session and the sender."""
        with ExitStack() as held:
            if self._connection is not None:
                held.enter_context(closing(self._connection))
            self._start_again()
