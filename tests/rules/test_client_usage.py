"""Responses of providers become events that Weir's own contract takes, with what the provider counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from weir_client import anthropic_usage, litellm_callback, openai_usage
from weir_client.encoding import encoded

CHAT: dict[str, Any] = {
    "id": "chatcmpl-CVm1",
    "created": 1_764_093_600,
    "model": "gpt-4o",
    "usage": {
        "prompt_tokens": 1200,
        "completion_tokens": 350,
        "prompt_tokens_details": {"cached_tokens": 1000, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 64},
    },
}
RESPONSES: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 1_764_093_600.0,
    "model": "gpt-5",
    "usage": {
        "input_tokens": 30,
        "output_tokens": 20,
        "input_tokens_details": {"cached_tokens": 10},
        "output_tokens_details": {"reasoning_tokens": 5},
    },
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "model": "claude-sonnet-4-5",
    "usage": {
        "input_tokens": 21,
        "cache_creation_input_tokens": 188,
        "cache_read_input_tokens": 1_000,
        "output_tokens": 393,
    },
}


class Response:
    """As the SDKs' own objects are: models of pydantic."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def model_dump(self) -> dict[str, Any]:
        return self._content


def test_a_chat_completion_is_one_call_with_its_parts() -> None:
    found = openai_usage(Response(CHAT), account="acme", source="backend", user_id="u1")
    assert found == {
        "type": "ai.inference.usage.v1",
        "source": "backend",
        "id": "chatcmpl-CVm1",
        "subject": "acme",
        "time": "2025-11-25T18:00:00Z",
        "data": {
            "request_id": "chatcmpl-CVm1",
            "model": "gpt-4o",
            "status": "completed",
            "input_tokens": 1200,
            "output_tokens": 350,
            "cached_tokens": 1000,
            "audio_input_tokens": 0,
            "reasoning_tokens": 64,
            "user_id": "u1",
        },
    }
    assert encoded([found]) == encoded([openai_usage(CHAT, account="acme", source="backend", user_id="u1")])


def test_openais_responses_and_embeddings_are_read_too() -> None:
    data = openai_usage(RESPONSES, account="a", source="s")["data"]
    assert (data["input_tokens"], data["output_tokens"], data["cached_tokens"], data["reasoning_tokens"]) == (
        30,
        20,
        10,
        5,
    )
    embeddings = {"object": "list", "model": "text-embedding-3-small", "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    first, second = (openai_usage(embeddings, account="a", source="s") for _ in range(2))
    assert (first["data"]["input_tokens"], "output_tokens" in first["data"]) == (8, False)
    assert first["id"] != second["id"]


@pytest.mark.parametrize("small", ["chatcmpl-426", "426", 426, "chatcmpl-1764093600123"])
def test_responses_that_share_a_small_number_are_calls_of_their_own_and_each_is_one_however_often_it_is_sent(
    small: Any,
) -> None:
    """Ollama numbers its responses at random below 999."""
    calls = [{**CHAT, "id": small, "choices": [{"message": {"content": text}}]} for text in ("\ud83d", "no", "no")]
    first, second, again = (openai_usage(Response(call), account="acme", source="backend") for call in calls)
    assert first["id"] != second["id"]
    assert again == second
    assert second["id"] == second["data"]["request_id"]
    assert second["id"].startswith(f"{small}-")


def test_anthropic_input_includes_cache_reads_and_writes() -> None:
    found = anthropic_usage(Response(MESSAGE), account="a", source="s", time=datetime(2026, 1, 2, tzinfo=UTC))
    assert found["time"] == "2026-01-02T00:00:00Z"
    assert found["data"] == {
        "request_id": "msg_1",
        "model": "claude-sonnet-4-5",
        "status": "completed",
        "input_tokens": 1_209,
        "output_tokens": 393,
        "cached_tokens": 1_000,
        "cache_write_tokens": 188,
    }


def test_the_litellm_callback_sends_usage_for_the_account_of_the_call() -> None:
    class Sender:
        sent: list[Any]

        def __init__(self) -> None:
            self.sent = []

        def send(self, event: Any, /) -> None:
            self.sent.append(event)

    client = Sender()
    callback = litellm_callback(
        client, source="litellm", account=lambda call: call["litellm_params"]["metadata"]["team"]
    )
    ended = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  # LiteLLM's own have no zone
    callback({"litellm_params": {"metadata": {"team": "acme"}}}, Response(CHAT), ended, ended)
    (event,) = client.sent
    assert (event["subject"], event["source"], event["data"]["output_tokens"]) == ("acme", "litellm", 350)
    assert datetime.fromisoformat(event["time"]) == ended.astimezone(UTC)
