"""examples/send_usage.py: what a newcomer copies is a valid event, and the same one each time it is sent."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from examples.send_usage import on_delivery, usage_event
from tests.rules.test_guide import assert_valid

CALL = ("acme", "r-1", datetime(2026, 11, 21, 10, tzinfo=UTC), {"model": "small-1", "input_tokens": 812})


def test_its_event_is_valid_and_the_same_call_makes_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(usage_event(*CALL))
    assert_valid(file)
    assert usage_event(*CALL) == usage_event(*CALL)


def test_an_event_that_no_broker_has_is_an_error() -> None:
    with pytest.raises(KafkaException):
        on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)  # type: ignore[arg-type]
