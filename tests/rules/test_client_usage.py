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
    # Null is no 0: it would count as a report that is missing.
    assert (first["data"]["input_tokens"], first["data"]["output_tokens"]) == (8, 0)
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    "small", ["chatcmpl-426", "426", 426, 0, "chatcmpl-1764093600123", "vertex-ai-1764093600123", "chat.id.41"]
)
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


@pytest.mark.parametrize(
    ("usage", "cached", "written"),
    [
        # DeepSeek
        ({"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64, None),
        # Moonshot
        ({"prompt_tokens": 100, "cached_tokens": 64}, 64, None),
        # OpenRouter
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 90}}, 0, 90),
        # LiteLLM, of a message of Anthropic
        (
            {
                "prompt_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_creation_tokens": 30},
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 30,
            },
            60,
            30,
        ),
        ({"prompt_tokens": 100, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30}, 60, 30),
        # Anthropic's own, whose input does not include them, is for `anthropic_usage`.
        ({"input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30}, None, None),
    ],
)
def test_what_compatible_apis_read_from_a_cache_and_write_to_it_is_not_billed_as_other_input(
    usage: dict[str, Any], cached: int | None, written: int | None
) -> None:
    response = {"id": "1", "model": "m", "usage": {**usage, "completion_tokens": 5}}
    data = openai_usage(response, account="a", source="s")["data"]
    assert (data.get("cached_tokens"), data.get("cache_write_tokens")) == (cached, written)


@pytest.mark.parametrize(
    ("status", "reported"), [("failed", "error"), ("cancelled", "cancelled"), ("incomplete", None)]
)
def test_a_response_that_failed_is_no_completed_request(status: str, reported: str | None) -> None:
    data = openai_usage({**RESPONSES, "status": status, "usage": None}, account="a", source="s")["data"]
    assert data["status"] == (reported or "completed")


@pytest.mark.parametrize(
    "part",
    [
        {"object": "chat.completion.chunk", "usage": None},
        {"status": "in_progress", "usage": None},
        {"status": "queued"},
    ],
)
def test_a_part_of_a_response_is_refused_as_it_has_the_id_of_the_one_with_the_usage(
    part: dict[str, Any],
) -> None:
    whole = {name: value for name, value in CHAT.items() if name != "usage"}
    with pytest.raises(ValueError, match="chatcmpl-CVm1 has no usage yet"):
        openai_usage({**whole, **part}, account="a", source="s")
    last = openai_usage({**CHAT, "object": "chat.completion.chunk"}, account="a", source="s")
    assert last["data"]["output_tokens"] == 350


def test_what_is_written_to_the_cache_for_an_hour_is_reported_as_a_part_of_all_that_is_written() -> None:
    hour = {**MESSAGE["usage"], "cache_creation": {"ephemeral_5m_input_tokens": 88, "ephemeral_1h_input_tokens": 100}}
    data = anthropic_usage({**MESSAGE, "usage": hour}, account="a", source="s")["data"]
    assert (data["cache_write_tokens"], data["cache_write_1h_tokens"]) == (188, 100)


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
    chunk = {**CHAT, "object": "chat.completion.chunk", "usage": None}
    of_stream = {"litellm_params": {"metadata": {"team": "acme"}}, "stream": True}
    callback(of_stream, Response(chunk), ended, ended)
    (event,) = client.sent
    for whole in ("complete_streaming_response", "async_complete_streaming_response"):
        callback({**of_stream, whole: Response({**CHAT, "id": whole})}, Response(chunk), ended, ended)
        assert [sent["data"]["output_tokens"] for sent in client.sent if sent["id"] == whole] == [350]
    assert (event["subject"], event["source"], event["data"]["output_tokens"]) == ("acme", "litellm", 350)
    assert datetime.fromisoformat(event["time"]) == ended.astimezone(UTC)
