"""What servers and gateways count beside, estimate, or call by one name is billed in full, and each call once.

The responses are those of Cohere's SDK (7.3, and its issue 711), Mistral's conversations (its SDK 3.7), LiteLLM 1.110,
AWS's Bedrock Access Gateway, FastFlowLM, Vertex's API for OpenAI's SDK, and Vertex's batches.
"""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.test_client_tokens import Sender, data_of, input_of, output_of
from tests.rules.test_client_usage import MESSAGE
from weir_client import anthropic_usage, gemini_usage, litellm_callback, openai_usage
from weir_client.tokens import openai_tokens

EMBEDDED_IMAGE: dict[str, Any] = {
    "id": "5807ee2e-0cda-445a-9ec8-864c60a06606",
    "embeddings": {"float": []},
    "meta": {
        "billed_units": {
            "images": None,
            "input_tokens": 0.0,
            "image_tokens": 2_716,
            "output_tokens": None,
            "search_units": None,
        }
    },
}
"""As Cohere's SDK has it: an image alone, which costs four times as much as text."""
ESTIMATED: dict[str, Any] = {
    "id": "chatcmpl-8f14e45f",
    "object": "chat.completion",
    "model": "qwen.qwen3-32b-v1:0",
    "choices": [{"finish_reason": "stop", "message": {}}],
    "usage": {
        "prompt_tokens": 40,
        "completion_tokens": 500,
        "total_tokens": 540,
        "prompt_tokens_details": None,
        "completion_tokens_details": {"reasoning_tokens": 612, "audio_tokens": 0},
    },
}
"""Bedrock counts no reasoning, so the gateway counts its text by OpenAI's tokenizer, which takes more for Chinese."""
FAST: dict[str, Any] = {
    "id": "chatcmpl-0b5c7d9e",
    "object": "chat.completion",
    "model": "claude-opus-4-6",
    "choices": [{"finish_reason": "stop", "message": {}}],
    "usage": {
        "prompt_tokens": 1_000,
        "completion_tokens": 50,
        "total_tokens": 1_050,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_creation_tokens": 0},
        "inference_geo": "us",
        "speed": "fast",
        "service_tier": "standard",
    },
}
"""LiteLLM's, of a message of Anthropic in fast mode, which costs six times as much."""
NAMELESS: dict[str, Any] = {
    "id": "fastflowlm-chat-completion",
    "object": "chat.completion",
    "created": 1_764_093_600,
    "model": "llama3.2:1b",
    "choices": [{"finish_reason": "stop", "message": {}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    "service_tier": "default",
}
"""FastFlowLM's, and so those of Lemonade: each has this id."""


def test_images_that_cohere_embeds_are_input_beside_the_text() -> None:
    """They were 0 tokens, and free."""
    data = data_of(EMBEDDED_IMAGE, model="embed-v4.0")
    assert (data["input_tokens"], data["image_input_tokens"], data["output_tokens"]) == (2_716, 2_716, 0)

    def billed(**units: float | None) -> dict[str, Any]:
        return data_of({**EMBEDDED_IMAGE, "meta": {"billed_units": units}}, model="embed-v4.0")

    assert input_of(billed(input_tokens=7.0, image_tokens=2_716))[::4] == (2_723, 2_716)
    # Where the text has a count of its own, the input may be both.
    assert input_of(billed(input_tokens=2_723, text_tokens=7, image_tokens=2_716))[::4] == (2_723, 2_716)
    for none in ({"image_tokens": None}, {"image_tokens": 0}, {}):
        assert input_of(billed(input_tokens=7.0, **none))[::4] == (7, None)


def test_what_connectors_gave_mistrals_model_goes_with_the_event() -> None:
    """It is beside the prompt, in the total alone: of 4,240 tokens 3,929 were in no quantity, and the search was."""
    usage: dict[str, Any] = {"prompt_tokens": 177, "completion_tokens": 134, "total_tokens": 4_240}
    usage |= {"connector_tokens": 3_929, "connectors": {"web_search": 1}}
    conversation = {"object": "conversation.response", "conversation_id": "conv_019b", "outputs": [], "usage": usage}
    data = data_of(conversation, model="mistral-small-latest")
    assert (data["input_tokens"], data["output_tokens"]) == (177, 134)
    assert (data["connector_tokens"], data["web_search_requests"]) == (3_929, 1)
    without = {**usage, "connector_tokens": None, "connectors": None}
    assert not {"connector_tokens", "web_search_requests"} & data_of({**conversation, "usage": without}).keys()


def test_reasoning_that_a_gateway_estimates_is_no_more_than_the_output() -> None:
    """The total proves that none of it is beside the output: it was a dead letter, and the call on no bill."""
    assert output_of(data_of(ESTIMATED)) == (500, 500, 0, None)
    # Without a total, or with another one, nobody knows which of the two is wrong.
    for total in (None, 500, 1_000):
        usage = {**ESTIMATED["usage"], "total_tokens": total}
        assert output_of(data_of({**ESTIMATED, "usage": usage}))[:2] == (500, 612)


@pytest.mark.parametrize(("written", "thoughts"), [(0, None), (38, 27), (5_000, 4_000)])
def test_what_googles_search_gave_is_no_output_in_what_litellm_makes_of_it(written: int, thoughts: int | None) -> None:
    """It costs nothing. Of an answer that was blocked it was output, as were so many tokens as the thoughts."""
    usage: dict[str, Any] = {"prompt_tokens": 12, "completion_tokens": written, "total_tokens": 12 + written + 4_000}
    usage["prompt_tokens_details"] = {"text_tokens": 12, "tool_use_tokens": 4_000, "web_search_requests": 2}
    usage["completion_tokens_details"] = written and {"reasoning_tokens": thoughts, "text_tokens": 11}
    data = data_of({"id": "chatcmpl-9zQ", "model": "gemini-2.5-flash-lite", "usage": usage})
    assert (data["input_tokens"], data["output_tokens"], data["web_search_requests"]) == (12, written, 2)
    # What a code's execution gave is billed, and within the prompt.
    within = {**usage, "prompt_tokens": 4_012}
    data = data_of({"id": "chatcmpl-9zQ", "model": "gemini-2.5-flash-lite", "usage": within})
    assert (data["input_tokens"], data["output_tokens"]) == (4_012, written)


@given(written=st.integers(0, 50), estimated=st.integers(0, 100), taken=st.integers(0, 50))
def test_reasoning_within_a_known_total_is_within_the_output(written: int, estimated: int, taken: int) -> None:
    usage: dict[str, Any] = {"prompt_tokens": taken, "completion_tokens": written, "total_tokens": taken + written}
    usage["completion_tokens_details"] = {"reasoning_tokens": estimated}
    found = openai_tokens(usage)
    assert (found["output_tokens"], found["reasoning_tokens"]) == (written, min(estimated, written))


def test_the_speed_and_the_place_of_claude_go_with_what_litellm_makes_of_it() -> None:
    """Fast mode costs six times as much, and was billed at the standard price."""
    sender = Sender()
    callback = litellm_callback(sender, source="litellm", account=lambda _: "acme")
    callback({"model": FAST["model"]}, FAST, *2 * [datetime(2026, 1, 2, tzinfo=UTC)])
    (event,) = sender.sent
    expected = {"speed": "fast", "inference_geo": "us", "service_tier": "standard"}
    assert event["data"].items() >= expected.items()
    # Others measure how fast they wrote, which is no text that a price names.
    measured = {**FAST, "usage": {**FAST["usage"], "speed": 41.7, "inference_geo": None}}
    assert not {"speed", "inference_geo"} & data_of(measured).keys()


def test_vertexs_type_of_traffic_goes_with_the_event_through_openais_sdk_and_litellm_too() -> None:
    """What provisioned throughput answered has been paid for, and priority costs more than on demand."""
    usage = {"prompt_tokens": 27, "completion_tokens": 45, "completion_tokens_details": {"reasoning_tokens": 504}}
    usage |= {"total_tokens": 576, "extra_properties": {"google": {"traffic_type": "PROVISIONED_THROUGHPUT"}}}
    chat = {"id": "nQiNafGyF5rw998PstqooAY", "model": "google/gemini-3.1-pro-preview", "usage": usage}
    data = data_of(chat)
    assert (data["service_tier"], data["output_tokens"]) == ("PROVISIONED_THROUGHPUT", 549)
    assert data_of({**chat, "service_tier": "flex"})["service_tier"] == "flex"
    sender = Sender()
    callback = litellm_callback(sender, source="litellm", account=lambda _: "acme")
    plain = {**chat, "usage": {**usage, "extra_properties": None}}
    hidden = {"provider_specific_fields": {"traffic_type": "ON_DEMAND_PRIORITY"}}
    for response in (plain, {**plain, "service_tier": "priority"}):
        of_litellm = SimpleNamespace(model_dump=lambda response=response: response, _hidden_params=hidden)
        callback({"model": "gemini-3.1-pro"}, of_litellm, *2 * [datetime(2026, 1, 2, tzinfo=UTC)])
    assert [event["data"]["service_tier"] for event in sender.sent] == ["ON_DEMAND_PRIORITY", "priority"]


def test_calls_of_a_server_that_has_words_for_an_id_are_calls_of_their_own() -> None:
    """All calls but the first were conflicts, and on no bill."""
    calls = [{**NAMELESS, "created": NAMELESS["created"] + second} for second in (0, 1, 1)]
    first, second, again = (openai_usage(call, account="acme", source="npu") for call in calls)
    assert first["id"] != second["id"]
    assert again == second
    assert second["id"].startswith("fastflowlm-chat-completion-")


@pytest.mark.parametrize(
    "unique", ["resp-abc", "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYzAbC", "gen-a-b2c", "a-b-cdefghijklmnop"]
)
def test_an_id_that_may_be_unique_stays_as_it_is(unique: str) -> None:
    assert openai_usage({**NAMELESS, "id": unique}, account="acme", source="npu")["id"] == unique


def test_a_message_of_anthropics_is_one_whatever_function_it_is_given_to() -> None:
    """LiteLLM, OpenRouter and others serve both APIs: what the cache gave and took was in no quantity."""
    message = {**MESSAGE, "type": "message", "stop_reason": "end_turn"}
    call: dict[str, Any] = {"account": "acme", "source": "backend", "time": datetime(2026, 1, 2, tzinfo=UTC)}
    found = openai_usage(message, **call, user_id="u-7")
    assert input_of(found["data"])[:3] == (1_209, 1_000, 188)
    assert found == anthropic_usage(message, **call, user_id="u-7")


@pytest.mark.parametrize(
    ("status", "usage"),
    [("requires_action", None), ("waiting", None), ("waiting", {"input_tokens": 5, "output_tokens": 1})],
)
def test_what_waits_for_an_answer_is_not_over(status: str, usage: Any) -> None:
    """A run of an assistant that called a tool, and a turn of an agent: the one that was over was a conflict."""
    run = {"id": "run_abcXYZ", "object": "thread.run", "model": "gpt-4o", "created_at": 1, "usage": usage}
    with pytest.raises(ValueError, match=r"run_abcXYZ has no usage yet"):
        openai_usage({**run, "status": status}, account="a", source="s")
    counts = {"prompt_tokens": 5, "completion_tokens": 1}
    assert data_of({**run, "status": "completed", "usage": counts})["input_tokens"] == 5


@pytest.mark.parametrize(
    "line",
    [
        {"status": "Bad Request: {}", "processed_time": "2026-04-13T10:18:18Z", "request": {}, "response": {}},
        {"status": "", "request": {}, "response": {"responseId": "r-1", "usageMetadata": {"promptTokenCount": 7}}},
        {"response": None, "metadata": {"key": "1"}, "error": {"code": 400}},
    ],
    ids=["one that failed", "one that is answered", "Google's SDK"],
)
def test_a_line_of_a_batch_of_gemini_is_no_response(line: dict[str, Any]) -> None:
    """One that failed was a completed request, of an interaction."""
    with pytest.raises(ValueError, match="send its `response`"):
        gemini_usage(line, account="a", source="s", model="gemini-2.5-flash")
