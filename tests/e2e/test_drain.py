"""`weir drain` returns when everything sent before it is billed, and says what waits and what is stuck."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from deployment.stack import Stack
from tests.e2e.metering import frozen, new_customer, weir


def test_usage_sent_before_drain_is_billed_when_it_returns(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, 25)
    drained = weir(stack, "drain", "--format", "json")
    assert drained.returncode == 0, drained.stderr
    (said,) = json.loads(drained.stdout)
    assert (said["drained"], said["stuck"]) == (True, None)
    assert customer.billed(stack) == customer.expected()


def test_a_request_without_its_completion_is_shown_as_waiting(stack: Stack, tmp_path: Path) -> None:
    account, now = f"acct-{uuid4().hex[:8]}", datetime.now(UTC).isoformat()
    data = {"request_id": uuid4().hex, "user_id": "u", "model": "m", "operation": "chat"}
    event = {"specversion": "1.0", "type": "ai.inference.request.v1", "source": "test", "id": uuid4().hex}
    file = tmp_path / "request.jsonl"
    file.write_text(json.dumps({**event, "subject": account, "time": now, "data": data}))
    assert weir(stack, "produce", str(file)).returncode == 0
    drained = weir(stack, "drain", "--format", "json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout)[0]["waiting"] >= 1
    listed = weir(stack, "usage", "--account", account, "--format", "json")
    assert json.loads(listed.stdout) == []


def test_on_timeout_it_names_what_is_stuck(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    with frozen(stack, "ingestion"):
        customer.send(stack, tmp_path, 5)
        drained = weir(stack, "drain", "--timeout", "0")
    assert drained.returncode == 1
    assert "After 0 s" in drained.stderr
    assert "ingestion still has" in drained.stderr
    assert "left; it " in drained.stderr
    assert weir(stack, "drain").returncode == 0
