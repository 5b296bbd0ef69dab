"""Offsets that no row has: what transactions leave is proved empty, and a policy that deletes records is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from deployment.positions import Positions
from deployment.stack import Stack
from jobs.streams import EVENTS_TOPIC, Table
from tests.e2e.metering import Customer, drain, new_customer
from tests.e2e.watched import Watch
from tests.waiting import wait_until

pytestmark = [pytest.mark.attack, pytest.mark.timeout(600)]
TRANSACTIONS = 60
PAIRS = 5


def in_transactions(stack: Stack, customer: Customer) -> None:
    """Each transaction holds `PAIRS` pairs; before each that is committed comes one that is aborted."""
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap, "transactional.id": customer.account})
    producer.init_transactions()
    for _ in range(TRANSACTIONS):
        for is_kept in (False, True):
            producer.begin_transaction()
            numbers = range(customer.pairs, customer.pairs + PAIRS)
            for event in (event for number in numbers for event in customer.events(number)):
                producer.produce(EVENTS_TOPIC, json.dumps(event).encode(), customer.account.encode())
            if is_kept:
                producer.commit_transaction()
                customer.pairs += PAIRS
            else:
                producer.flush(30)
                producer.abort_transaction()
        time.sleep(0.1)


def rows_of(stack: Stack, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(stack.postgres_url) as connection:
        return list(connection.execute(query).fetchall())


def set_policy(stack: Stack, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, EVENTS_TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": stack.kafka_bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()


def test_gaps_of_transactions_are_proved_empty_and_the_bill_is_exact(stack: Stack, tmp_path: Path) -> None:
    customer, watch = new_customer(stack, tmp_path), Watch(stack)
    exits = rows_of(stack, "SELECT count(*) FROM exits")
    in_transactions(stack, customer)
    drain(stack)
    assert customer.billed(stack) == customer.expected()
    assert rows_of(stack, "SELECT count(*) FROM exits") == exits
    wait_until(lambda: (watch.value("weir_absent_offsets_total") or 0) > 0, "absent offsets being counted")
    assert watch.value("weir_unproved_offsets") in (None, 0.0)


def test_a_topic_that_is_compacted_from_now_on_is_refused_while_ingestion_runs_and_nothing_is_lost(
    stack: Stack, tmp_path: Path
) -> None:
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, PAIRS)
    drain(stack)
    refused = "SELECT count(*) FROM exits WHERE job = 'ingestion' AND how = 'refused'"
    set_policy(stack, "compact")
    try:
        wait_until(lambda: rows_of(stack, refused) != [(0,)], "ingestion refusing the topic")
        customer.send(stack, tmp_path, PAIRS)
    finally:
        set_policy(stack, "delete")
    drain(stack)
    assert customer.billed(stack) == customer.expected()
    assert Positions(stack.tables, stack.postgres_url).next_lsn(Table.JOURNAL) > PAIRS
