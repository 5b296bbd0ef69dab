"""A broker whose clock jumps a day ahead: nothing is closed by it, and a restamp lets metering go on at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from deployment.positions import Positions, describe, ends
from deployment.stack import Stack
from jobs.streams import EVENTS_TOPIC, Table
from tests.attack.clock import ClockedBroker, clocked_broker
from tests.e2e.metering import drain, new_customer, weir
from tests.waiting import wait_until

pytestmark = [pytest.mark.attack, pytest.mark.timeout(900)]
PAIRS = 60
DAY_SECONDS = 86_400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockedBroker]:
    with clocked_broker(tmp_path_factory.mktemp("broker")) as running, pytest.MonkeyPatch.context() as environment:
        environment.setenv("WEIR_KAFKA_BOOTSTRAP", running.bootstrap)
        yield running


@pytest.fixture(scope="module")
def clocked_stack(broker: ClockedBroker, stack: Stack) -> Stack:
    assert stack.kafka_bootstrap == broker.bootstrap
    return stack


def waits_for(stack: Stack, job: str) -> str | None:
    with psycopg.connect(stack.postgres_url) as connection:
        row = connection.execute("SELECT progress ->> 'waiting_for' FROM jobs WHERE job = %s", [job]).fetchone()
    return None if row is None else row[0]


def epoch_of_ingestion(stack: Stack) -> int:
    with psycopg.connect(stack.postgres_url) as connection:
        row = connection.execute("SELECT epoch FROM jobs WHERE job = 'ingestion'").fetchone()
    assert row is not None
    return int(row[0])


def test_a_timestamp_a_day_ahead_is_passed_by_a_restamp(
    broker: ClockedBroker, clocked_stack: Stack, tmp_path: Path
) -> None:
    stack = clocked_stack
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, PAIRS)
    drain(stack)
    epoch = epoch_of_ingestion(stack)
    broker.set_ahead(DAY_SECONDS)
    billed = customer.billed(stack)
    customer.send(stack, tmp_path, PAIRS)
    wait_until(lambda: waits_for(stack, "ingestion") == "broker_clock", "ingestion waiting for the clock")
    broker.set_ahead(0)
    topic = describe(stack.kafka_bootstrap, [EVENTS_TOPIC])[0]
    positions = Positions(stack.tables, stack.postgres_url)
    ahead = ends(stack.kafka_bootstrap, [topic])
    customer.send(stack, tmp_path, PAIRS)
    assert customer.billed(stack) == billed, "something was decided by a clock that is wrong"
    for partition in topic.partitions:
        read = positions.transaction(Table.JOURNAL, topic.position(partition)) or 0
        last = ahead[topic.position(partition)] - 1
        weir(stack, "journal", "restamp", str(partition), str(read), str(last), "--timeout", "0")
    wait_until(lambda: waits_for(stack, "ingestion") is None, "ingestion going on")
    drain(stack)
    assert customer.billed(stack) == customer.expected()
    assert epoch_of_ingestion(stack) == epoch, "ingestion was started again"
