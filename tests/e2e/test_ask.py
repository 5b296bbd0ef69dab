"""What was posted can be asked for at once: usage after the position of the post, and what became of the request."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from uuid import uuid4

from deployment.stack import Stack
from tests.e2e.metering import weir
from tests.waiting import wait_until

TOKENS = {"input_tokens": 11, "output_tokens": 3, "cached_tokens": 0}


def ask(stack: Stack, key: str, path: str, body: Any = None, **given: Any) -> tuple[int, Any]:
    """Status and JSON of a request; a body is posted."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{stack.api_url}{path}?{urlencode(given)}", data, headers)
    try:
        answer: HTTPResponse
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def key_of(stack: Stack, account: str) -> str:
    scopes = ("--scope", "ingest", "--scope", "read")
    made = weir(stack, "keys", "create", *scopes, "--account", account, "--format", "json")
    assert made.returncode == 0, made.stderr
    key: str = json.loads(made.stdout)["key"]
    wait_until(lambda: ask(stack, key, "/v1/usage")[0] != 401, "the key being known", 60, every_seconds=0.2)
    return key


def answer_after(stack: Stack, key: str, position: str) -> tuple[int, Any]:
    """As a client asks for usage after its post: again, as long as it is told that it is not billed yet."""
    answers: list[tuple[int, Any]] = []

    def is_answered() -> bool:
        answers.append(ask(stack, key, "/v1/usage", after=position, wait=30))
        return answers[-1][0] != HTTPStatus.CONFLICT

    wait_until(is_answered, "the events being billed")
    return answers[-1]


def test_posted_usage_is_in_the_next_answer_for_its_account_only(stack: Stack) -> None:
    mine, others = uuid4().hex, uuid4().hex
    key, other = key_of(stack, mine), key_of(stack, others)
    sent = {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "gw",
        "id": mine,
        "subject": mine,
        "time": datetime.now(UTC).isoformat(),
        "data": {"request_id": f"r-{mine}", "model": "gpt-4o", "status": "completed", **TOKENS},
    }
    status, posted = ask(stack, key, "/v1/events", sent)
    assert (status, posted["accepted"]) == (200, 1), posted
    status, answer = answer_after(stack, key, posted["position"])
    assert status == 200, answer
    assert {row["meter"]: row["quantity"] for row in answer["data"]} == {
        "requests": "1",
        **{meter: str(count) for meter, count in TOKENS.items() if count},
    }
    assert {row["account"] for row in answer["data"]} == {mine}
    status, explained = ask(stack, key, f"/v1/requests/r-{mine}")
    assert status == 200, explained
    assert [record["id"] for record in explained["data"]["records"]] == [mine]
    assert explained["data"]["adds_up"] is True
    assert ask(stack, other, f"/v1/requests/r-{mine}")[0] == 404
    status, answer = ask(stack, key, f"/v1/events/gw/{mine}")
    assert status == 200, answer
    became = answer["data"]["event"]
    assert (became["disposition"], became["request_ids"]) == ("accepted", [f"r-{mine}"])
    assert ask(stack, other, f"/v1/events/gw/{mine}")[0] == 404
    assert ask(stack, other, "/v1/usage")[1]["data"] == []
    assert ask(stack, other, "/v1/usage", account=mine)[0] == 403
    status, metered = ask(stack, key, "/api/v1/meters/input_tokens/query", {"groupBy": ["model"]})
    assert (status, [row["value"] for row in metered["data"]]) == (200, [11])
