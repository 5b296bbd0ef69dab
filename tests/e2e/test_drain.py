"""`weir drain` returns when everything sent before it is billed, and generated traffic is billed as its truth says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from local.stack import Stack, running_stack
from local.traffic.compare import compare
from tests.e2e.metering import new_customer, weir

EVENTS = 6_000
DECISION_SECONDS = 280


def test_what_was_sent_before_is_billed_when_drain_returns(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, 25)
    drained = weir(stack, "drain", "--format", "json")
    assert drained.returncode == 0, drained.stderr
    (said,) = json.loads(drained.stdout)
    assert (said["drained"], said["stuck"]) == (True, None)
    assert customer.billed(stack) == customer.expected()


def test_a_request_without_its_completion_is_said_to_wait(stack: Stack, tmp_path: Path) -> None:
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


def test_when_the_time_is_over_it_says_what_is_stuck(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    ingestion = running_stack(stack.data_dir).process("ingestion").process
    assert ingestion is not None
    os.killpg(ingestion.pid, signal.SIGSTOP)
    try:
        customer.send(stack, tmp_path, 5)
        drained = weir(stack, "drain", "--timeout", "0")
    finally:
        os.killpg(ingestion.pid, signal.SIGCONT)
    assert drained.returncode == 1
    assert "After 0 s" in drained.stderr
    assert "to go; it said" in drained.stderr
    assert weir(stack, "drain").returncode == 0


def test_generated_traffic_is_billed_as_its_truth_says(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "truth.json"
    sent = weir(stack, "traffic", "--events", str(EVENTS), "--seed", "11", "--truth", str(file))
    assert sent.returncode == 0, sent.stdout + sent.stderr
    # Abandoned requests are decided two minutes after they came.
    command = [sys.executable, "-m", "local.cli", "drain", "--include-waiting", "--data-dir", str(stack.data_dir)]
    drained = subprocess.run(
        [*command, "--timeout", str(DECISION_SECONDS)], capture_output=True, text=True, check=False, timeout=300
    )
    assert drained.returncode == 0, drained.stdout + drained.stderr
    truth = json.loads(file.read_text())
    comparison = compare(truth, stack.postgres_url, stack.tables)
    assert comparison.differences == []
    assert comparison.is_equal
    # A comparison that could not fail would prove nothing.
    truth["totals"][0]["amount"] += "1"
    truth["outcomes"].pop()
    assert len(compare(truth, stack.postgres_url, stack.tables).differences) > 2
