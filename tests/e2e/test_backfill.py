"""History through all four applications, beside live traffic: billed in its own minutes, once, by a new source."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from deployment.stack import Stack
from metering.instants import rfc3339
from tests.e2e.metering import PRICES, drain, new_customer, weir

WINDOWS = """
SELECT date_trunc('day', window_start), meter, sum(quantity), sum(amount), bool_and(corrected) FROM usage_windows
WHERE account = %s AND quantity <> 0 GROUP BY 1, 2 ORDER BY 1, 2
"""
AGO = timedelta(days=200)
PAIRS = 40


@pytest.mark.long
def test_history_is_billed_once_in_its_own_minutes_beside_live_traffic(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    customer.gateway = f"history/{customer.account}"
    first_day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - AGO
    requests, completions = [], []
    for number in range(PAIRS):
        request, completion = customer.events(number)
        at = first_day + timedelta(minutes=number)
        requests.append({**request, "time": at.isoformat()})
        received_at = (at + timedelta(seconds=2)).isoformat()
        completions.append({**completion, "time": at.isoformat(), "receivedtime": received_at})
    files = []
    for name, events in (("requests", requests), ("completions", completions)):
        files.append(str(tmp_path / f"{name}.jsonl"))
        Path(files[-1]).write_text("".join(json.dumps(event) + "\n" for event in events))
    dry = weir(stack, "backfill", "--dry-run", "--format", "json", *files)
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert len(json.loads(dry.stdout)) == 2 * PAIRS
    assert f"{2 * PAIRS} are of minutes that have closed" in dry.stderr
    live = new_customer(stack, tmp_path)
    with live.sending(stack):
        for _ in range(2):
            done = weir(stack, "backfill", *files)
            assert done.returncode == 0, done.stdout + done.stderr
    drain(stack)
    numbers = range(PAIRS)
    quantities = {
        "input_tokens": sum(100 + number for number in numbers),
        "output_tokens": sum(7 * number for number in numbers),
        "requests": PAIRS,
    }
    expected = [(first_day, meter, many, many * PRICES[meter], True) for meter, many in quantities.items()]
    with psycopg.connect(stack.postgres_url) as connection:
        assert connection.execute(WINDOWS, [customer.account]).fetchall() == expected
        silent = connection.execute("SELECT * FROM sources WHERE source = %s", [customer.gateway]).fetchall()
    assert silent == []
    assert live.billed(stack) == live.expected()
    explained = weir(stack, "explain", f"{customer.account}-1", "--format", "json")
    assert f'"first_received_at": "{rfc3339(first_day + timedelta(minutes=1, seconds=2))}"' in explained.stdout
