"""Bad input never stops a job: the whole corpus through the running stack, each record with its reason."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import polars as pl
import psycopg
from confluent_kafka import KafkaError, Message, Producer
from deltalake import DeltaTable

from deployment.stack import Stack, running_stack
from jobs.streams import EVENTS_TOPIC
from metering.vocabulary import ALWAYS
from tests.corpus import BAD_DOCUMENTS, TOO_LARGE, dated
from tests.e2e.metering import drain, new_customer

Place = tuple[int, int]
"""Partition and offset."""


def sent_to_broker(stack: Stack, values: list[bytes | None]) -> list[Place]:
    """Send each value as one record, new lines and all; where each one stands."""
    places: dict[int, Place] = {}

    def note(error: KafkaError | None, message: Message, number: int) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        places[number] = partition, offset

    # The broker's limit is a batch's: documents of the largest size must not share one.
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap, "batch.num.messages": 1})
    for number, value in enumerate(values):
        producer.produce(EVENTS_TOPIC, value, on_delivery=partial(note, number=number))
    assert producer.flush(60) == 0
    return [places[number] for number in range(len(values))]


def epochs(stack: Stack) -> dict[str, int]:
    with psycopg.connect(stack.postgres_url) as connection:
        return dict(connection.execute("SELECT job, epoch FROM jobs").fetchall())


def test_each_bad_document_is_rejected_for_its_reason_and_no_driver_stops(stack: Stack, tmp_path: Path) -> None:
    drivers_before = epochs(stack)
    now = datetime.now(UTC)
    documents = [dated(document, now) for document in BAD_DOCUMENTS]
    places = sent_to_broker(stack, [document.value for document in documents])
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, 10)
    drain(stack)
    dataset = DeltaTable(f"{stack.tables}/journal").to_pyarrow_dataset()
    columns = ["topic", "partition", "offset", "reason", "value"]
    journal = pl.DataFrame(dataset.to_table(columns=columns)).filter(pl.col("topic") == EVENTS_TOPIC)
    rows = {(partition, offset): (reason, value) for _, partition, offset, reason, value in journal.iter_rows()}
    found = {document.name: rows[place] for document, place in zip(documents, places, strict=True)}
    assert found == {document.name: (document.reason, document.value) for document in documents}
    assert customer.billed(stack) == customer.expected()
    assert epochs(stack) == drivers_before
    assert all(running_stack(stack.data_dir).process(job).process is not None for job in ALWAYS)


def test_a_document_above_the_limit_never_becomes_a_record(stack: Stack) -> None:
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap})
    refused: list[KafkaError] = []
    producer.produce(EVENTS_TOPIC, TOO_LARGE, on_delivery=lambda error, _: refused.append(error) if error else None)
    producer.flush(60)
    assert [error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE]
