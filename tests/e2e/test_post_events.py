"""Events that are posted over HTTP are metered as those that are produced, each once, however often they are sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

from deployment.stack import Stack
from tests.e2e.metering import drain, weir
from tests.waiting import wait_until


def post(stack: Stack, key: str, body: Any, content_type: str = "application/cloudevents+json") -> tuple[int, bytes]:
    """Status and body of a `POST /api/v1/events`, as LiteLLM's callback makes it."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": content_type}
    request = Request(f"{stack.api_url}/api/v1/events", json.dumps(body).encode(), headers, method="POST")
    with urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


def is_known(stack: Stack, key: str) -> bool:
    try:
        post(stack, key, [])
    except OSError as error:
        return "401" not in str(error)
    return True


def test_what_litellm_and_a_gateway_without_a_clock_post_is_metered_once(stack: Stack) -> None:
    mark = uuid4().hex
    made = weir(stack, "keys", "create", "--scope", "ingest", "--account", mark, "--format", "json")
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)
    wait_until(lambda: is_known(stack, key["key"]), "the key being known", 10, every_seconds=0.2)
    litellm = {
        "specversion": "1.0",
        "type": "litellm_tokens",
        "source": "litellm-proxy",
        "id": mark,
        "subject": mark,
        "time": datetime.now(UTC).isoformat(),
        "data": {"model": "gpt-4o", "prompt_tokens": 7, "completion_tokens": 2, "cost": 0.0},
    }
    timeless = {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "gw",
        "id": mark,
        "subject": mark,
        "data": {"request_id": f"{mark}-2", "model": "gpt-4o", "status": "completed", "input_tokens": 11},
    }
    for _ in range(2):
        assert post(stack, key["key"], litellm) == (204, b"")
        assert post(stack, key["key"], [timeless], "application/cloudevents-batch+json") == (204, b"")
    drain(stack)
    listed = weir(
        stack, "usage", "--window", "P1M", "--group-by", "account,meter", "--account", mark, "--format", "json"
    )
    quantities = {row["meter"]: float(row["quantity"]) for row in json.loads(listed.stdout)}
    assert quantities == {"requests": 2, "input_tokens": 18, "output_tokens": 2}
    # What is sent again is a duplicate, also where each copy was stamped with another time.
    conflicts = weir(stack, "conflicts", "--format", "json")
    assert mark not in conflicts.stdout
    listed = weir(stack, "keys", "list", "--format", "json")
    (row,) = (row for row in json.loads(listed.stdout) if row["id"] == key["id"])
    assert (row["state"], row["accounts"], key["key"] in listed.stdout) == ("valid", mark, False)
