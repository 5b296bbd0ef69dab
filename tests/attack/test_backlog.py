"""A backlog larger than a chunk: what is in flight where a chunk ends is neither abandoned nor orphaned."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from deployment.positions import Positions, describe, ends
from deployment.stack import Stack
from jobs.streams import EVENTS_TOPIC, Table
from tests.attack.conftest import CHUNK_ROWS, TIMEOUT_SECONDS
from tests.attack.traffic import send_in_flight
from tests.e2e.metering import drain, new_customer
from tests.e2e.test_failures import frozen_drivers
from tests.e2e.watched import works_again
from tests.waiting import wait_until

pytestmark = pytest.mark.attack


def test_a_bill_is_exact_after_an_outage_and_one_large_commit(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    positions = Positions(stack.tables, stack.postgres_url)
    with frozen_drivers(stack, ("joins",)) as frozen:
        before = positions.next_lsn(Table.JOURNAL)
        with frozen_drivers(stack, ("ingestion",)):
            send_in_flight(stack, customer, 2.0 * TIMEOUT_SECONDS)
        required = ends(stack.kafka_bootstrap, describe(stack.kafka_bootstrap, [EVENTS_TOPIC]))
        wait_until(lambda: positions.missing(required) == 0, "the journal having it all")
        assert positions.next_lsn(Table.JOURNAL) - before > 5 * CHUNK_ROWS, "this is no backlog of several chunks"
        os.killpg(frozen["joins"], signal.SIGKILL)
    wait_until(lambda: works_again(stack, "joins", 0), "joins being started again")
    drain(stack)
    assert customer.billed(stack) == customer.expected()
