"""Requests whose completions come seconds later, sent at a steady rate: some are always in flight."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

from confluent_kafka import Producer

from deployment.stack import Stack
from tests.e2e.metering import Customer

RATE = 20
IN_FLIGHT_SECONDS = 3.0


def send_in_flight(stack: Stack, customer: Customer, seconds: float) -> None:
    """Send `RATE` pairs a second for `seconds`; each completion follows its request after `IN_FLIGHT_SECONDS`."""
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap, "linger.ms": 5})
    first, pairs = customer.pairs, int(seconds * RATE)
    plan = [(number / RATE, first + number, 0) for number in range(pairs)]
    plan += [(at + IN_FLIGHT_SECONDS, number, 1) for at, number, _ in plan]
    started = time.monotonic()
    for at, number, part in sorted(plan):
        time.sleep(max(0.0, started + at - time.monotonic()))
        event = {**customer.events(number)[part], "time": datetime.now(UTC).isoformat()}
        producer.produce("events", json.dumps(event).encode(), customer.account.encode())
        producer.poll(0)
    assert producer.flush(30) == 0, "not everything could be sent"
    customer.pairs += pairs
