"""Records made to end whoever reads them: each is a dead letter, and nobody else's record waits for long."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deployment.stack import Stack
from tests.e2e.conftest import weir_at
from tests.e2e.metering import Customer, drain, new_customer, weir

pytestmark = [pytest.mark.attack, pytest.mark.timeout(900)]
PAIRS = 60
BOMB_BYTES = 150 << 20
"""Compressed it is small enough for the broker, which looks at the size of the compressed batch."""
RECOVERY_SECONDS = 120


def send_bomb(stack: Stack, customer: Customer) -> None:
    producer = Producer(
        {"bootstrap.servers": stack.kafka_bootstrap, "compression.type": "gzip", "message.max.bytes": 2 * BOMB_BYTES}
        | {"queue.buffering.max.kbytes": 2 * BOMB_BYTES // 1024}
    )
    request, _ = customer.events(10_000_000)
    producer.produce("events", json.dumps({**request, "padding": " " * BOMB_BYTES}).encode(), customer.account.encode())
    assert producer.flush(120) == 0, "the bomb was not taken"


def test_a_record_that_inflates_to_150_mib_is_a_dead_letter_and_metering_goes_on_within_two_minutes(
    stack: Stack, tmp_path: Path
) -> None:
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, PAIRS)
    send_bomb(stack, customer)
    started = time.monotonic()
    customer.send(stack, tmp_path, PAIRS)
    drained = weir_at(stack.data_dir, "drain", "--timeout", "240")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    took_seconds = time.monotonic() - started
    assert customer.billed(stack) == customer.expected()
    listed = weir(stack, "dead-letters", "--format", "json")
    assert listed.returncode == 0, listed.stderr
    letters = [letter for letter in json.loads(listed.stdout) if letter["reason"] == "too_large"]
    assert len(letters) == 1
    assert took_seconds < RECOVERY_SECONDS, f"metering went on after {took_seconds:.0f} s"
    customer.send(stack, tmp_path, PAIRS)
    drain(stack)
    assert customer.billed(stack) == customer.expected()
