"""Dead letters through all four applications: mended, sent again and billed in their own minute, once."""

from __future__ import annotations

import json
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deployment.stack import Stack
from tests.e2e.metering import PRICES, drain, new_customer, weir

MEND = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    event = json.loads(json.loads(line)["value"])
    event["data"]["model"] = "m"
    print(json.dumps(event) if event["subject"] == {account!r} else "")
"""
WINDOWS = """
SELECT window_start, meter, quantity, amount, late_rows, corrected FROM usage_windows
WHERE account = %s AND quantity <> 0
ORDER BY 1, 2
"""
TOKENS = 7


def without_model(account: str, name: str, at: datetime) -> dict[str, Any]:
    data = {"request_id": f"{account}-{name}", "user_id": "u", "status": "completed", "output_tokens": TOKENS}
    envelope = {"specversion": "1.0", "type": "ai.inference.usage.v1", "source": f"gateway/{account}", "id": name}
    return {**envelope, "subject": account, "time": at.isoformat(), "data": data}


def in_the_middle_of_a_minute() -> datetime:
    """Now, but never so late in a minute that what is sent now may be received in the next."""
    while datetime.now(UTC).second > 40:
        time.sleep(1)
    return datetime.now(UTC)


@pytest.mark.long
def test_a_corrected_dead_letter_is_billed_once_as_late_as_at_first(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    account = customer.account
    drain(stack)
    now = in_the_middle_of_a_minute()
    # The minute of the second has closed before: the grace is five minutes.
    events = [without_model(account, "new", now), without_model(account, "old", now - timedelta(minutes=20))]
    file = tmp_path / "broken.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert weir(stack, "produce", str(file)).returncode == 0
    drain(stack)
    minute_end = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while datetime.now(UTC) < minute_end + timedelta(seconds=1):
        time.sleep(1)
    mend = tmp_path / "mend.py"
    mend.write_text(MEND.format(account=account))
    mend.chmod(mend.stat().st_mode | stat.S_IXUSR)
    replay = ("dead-letters", "redrive", "--reason", "invalid_model", "--edit", str(mend), "--from", now.isoformat())
    for _ in range(2):
        done = weir(stack, *replay)
        assert done.returncode == 0, done.stdout + done.stderr
        drain(stack)
    assert "2 replayed" in done.stderr
    with psycopg.connect(stack.postgres_url) as connection:
        rows = connection.execute(WINDOWS, [account]).fetchall()
        corrections = connection.execute("SELECT meter FROM corrections WHERE account = %s", [account]).fetchall()
    starts = [(now - timedelta(minutes=20)).replace(second=0, microsecond=0), minute_end - timedelta(minutes=1)]
    expected = [
        (start, meter, quantity, quantity * PRICES[meter], 0, start == starts[0])
        for start in starts
        for meter, quantity in (("output_tokens", TOKENS), ("requests", 1))
    ]
    # The first window was closed when it came back; in the second it was on time, when it was received first.
    assert rows == expected
    assert sorted(corrections) == [("output_tokens",), ("requests",)]
