"""What `helm test` runs: prices a model, sends one event, and sees exactly that billed.

The account and the currency (XTS, ISO's code for tests) are not real: no real bill changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

ACCOUNT = "weir-helm-test"
PRICE = Decimal("0.25")
CATALOG = {
    "plans": [{"plan": ACCOUNT, "name": "helm test"}],
    "accounts": [{"account": ACCOUNT, "name": "helm test", "plan": ACCOUNT, "currency": "XTS", "timezone": "UTC"}],
    "prices": [
        {
            "plan": ACCOUNT,
            "model": "helm-test",
            "meter": "requests",
            "unit_price": str(PRICE),
            "currency": "XTS",
            "effective_from": "2020-01-01T00:00:00Z",
        }
    ],
}


def weir(*arguments: str, text: str | None = None) -> str:
    """What a `weir` command prints; a failing command ends the test with its error."""
    answer = subprocess.run(["weir", *arguments], input=text, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        sys.exit(f"weir {' '.join(arguments)} ended with {answer.returncode}")
    return answer.stdout


def event(now: datetime) -> str:
    """One request and its completion in one, as a gateway reports it."""
    identity = str(uuid.uuid4())
    data = {
        "request_id": identity,
        "user_id": "helm-test",
        "api_key_id": "helm-test",
        "model": "helm-test",
        "operation": "chat",
        "route": "/helm-test",
        "region": "test",
        "status": "completed",
        "input_tokens": 3,
        "output_tokens": 2,
        "usage_source": "provider",
        "latency_ms": 1,
    }
    head = {"specversion": "1.0", "type": "ai.inference.usage.v1", "source": "helm-test", "id": identity}
    return json.dumps({**head, "subject": ACCOUNT, "time": now.isoformat(), "data": data})


def billed(since: datetime) -> tuple[int, Decimal]:
    """Requests of the account and their amount, over the windows that start at `since` or later."""
    listed = weir("usage", "--account", ACCOUNT, "--from", since.isoformat(), "--format", "json")
    rows = [row for row in json.loads(listed) if row["meter"] == "requests"]
    return sum(int(row["quantity"]) for row in rows), sum((Decimal(row["amount"]) for row in rows), Decimal())


def main(timeout_seconds: float) -> None:
    """Exit with a sentence unless the event is billed in time, once, at its price."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder, "catalog.json")
        catalog.write_text(json.dumps(CATALOG), encoding="utf-8")
        print(weir("catalog", "apply", str(catalog), "--timeout", str(timeout_seconds)).strip(), flush=True)
    now = datetime.now(UTC)  # noqa: TID251 -- the top of the program
    since = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
    before = billed(since)
    weir("produce", "-", text=event(now) + "\n")
    deadline = time.monotonic() + timeout_seconds
    while (after := billed(since)) == before:
        if time.monotonic() > deadline:
            sys.exit(f"The event is not billed after {timeout_seconds:.0f} s; look at the applications.")
        time.sleep(2)
    requests, amount = after[0] - before[0], after[1] - before[1]
    if (requests, amount) != (1, PRICE):
        sys.exit(f"One event at {PRICE} XTS was billed as {requests} requests for {amount} XTS.")
    print(f"One event was sent, and billed as one request for {amount} XTS.")


if __name__ == "__main__":
    main(float(sys.argv[1]))
