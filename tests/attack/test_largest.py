"""The largest numbers that an event may say: one tenant's sums have no largest number and stop nobody's bill."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from deployment.stack import Stack
from metering.contracts.keywords import MAX_UNITS
from tests.e2e.metering import PRICES, Customer, drain, new_customer, weir

pytestmark = [pytest.mark.attack, pytest.mark.timeout(600)]
EVENTS = 5_000
PAIRS = 10


def usage(customer: Customer, number: int, tokens: int) -> dict[str, object]:
    """One usage event, as of now."""
    data: dict[str, object] = {"request_id": f"{customer.account}-{number}", "user_id": "u"}
    data |= {"model": "m", "operation": "chat"}
    data |= {"status": "completed", "usage_source": "provider", "input_tokens": tokens, "output_tokens": tokens}
    named = {"source": f"gateway/{customer.account}", "subject": customer.account, "id": f"u{number}"}
    kind = {"specversion": "1.0", "type": "ai.inference.usage.v1", "time": datetime.now(UTC).isoformat()}
    return {**kind, **named, "data": data}


def test_the_largest_quantities_are_billed_to_the_last_digit_and_delay_no_other_usage(
    stack: Stack, tmp_path: Path
) -> None:
    largest, other = new_customer(stack, tmp_path), new_customer(stack, tmp_path)
    events = [usage(largest, number, MAX_UNITS) for number in range(EVENTS)]
    events.append(usage(largest, EVENTS, MAX_UNITS + 1))
    file = tmp_path / "largest.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    sent = weir(stack, "produce", str(file))
    assert sent.returncode == 0, sent.stderr
    other.send(stack, tmp_path, PAIRS)
    drain(stack)
    tokens = Decimal(EVENTS * MAX_UNITS)
    quantities = {"requests": Decimal(EVENTS), "input_tokens": tokens, "output_tokens": tokens}
    assert largest.billed(stack) == {meter: (sum_, sum_ * PRICES[meter]) for meter, sum_ in quantities.items()}
    assert other.billed(stack) == other.expected()
    listed = weir(stack, "dead-letters", "--format", "json")
    reasons = [letter["reason"] for letter in json.loads(listed.stdout)]
    assert reasons == ["invalid_tokens"]
