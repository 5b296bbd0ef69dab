"""What gateways, servers and SDKs write otherwise than the API that they follow is billed as what it means.

The responses are those of LiteLLM's batches and rerankings, SGLang's and KoboldCpp's own code, Portkey's gateway, Groq,
OpenRouter, Azure's content filter, and the types of Cohere's, OpenAI's and Google's SDKs (7.3, 3.57, 3.6).
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.rules.test_client_tokens import VERTEX, Sender, data_of, input_of, output_of
from weir_client import AsyncClient, anthropic_usage, gemini_usage, litellm_callback, openai_usage, usage_event
from weir_client.encoding import encoded

NOTHING: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
NOTHING |= {"prompt_tokens_details": None, "completion_tokens_details": None}
BATCH: dict[str, Any] = {
    "id": "batch_6aae66c6f858819096a993cbf56f1baf",
    "object": "batch",
    "created_at": 1_764_093_600,
    "status": "completed",
    "model": "gpt-5.6-luna",
    "usage": {
        **NOTHING,
        "total_tokens": 300_093,
        "input_tokens": 300_000,
        "input_tokens_details": {"cached_tokens": 1_024},
        "output_tokens": 93,
        "output_tokens_details": {"reasoning_tokens": 64},
    },
}
"""As LiteLLM's proxy has it: the counts of chat completions are 0."""


COHERE: dict[str, Any] = {
    "id": "c14c80c3-18eb-4519-9460-6c92edd8cfb4",
    "finish_reason": "COMPLETE",
    "message": {},
    "usage": {"billed_units": {"input_tokens": 5.0, "output_tokens": 418.0}, "tokens": {"input_tokens": 71.0}},
}


def test_a_batch_is_billed_by_the_counts_that_its_gateway_fills() -> None:
    """300,000 tokens were billed as 0."""
    data = data_of(BATCH, operation="batch")
    assert (*input_of(data)[:2], *output_of(data)[:2]) == (300_000, 1_024, 93, 64)
    # The other way round, as gateways do that have one form for both.
    chat = {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens": 3}
    chat |= {"input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0}
    assert input_of(data_of({"id": "x", "usage": chat}))[:2] == (7, 5)
    assert input_of(data_of({"id": "x", "usage": NOTHING}))[0] == 0


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "cancelling"])
def test_a_batch_that_is_not_over_is_refused_though_it_has_a_usage_of_0(status: str) -> None:
    """It has the id of the one that is over, which would be a conflict and on no bill."""
    with pytest.raises(ValueError, match=r"batch_6aae.* has no usage yet.*a batch the one that is over"):
        openai_usage({**BATCH, "status": status, "usage": NOTHING}, account="a", source="s", model="gpt-5.6-luna")


@pytest.mark.parametrize(("status", "expected"), [("expired", "completed"), ("cancelled", "cancelled")])
def test_what_a_batch_took_before_it_ended_early_is_billed(status: str, expected: str) -> None:
    data = data_of({**BATCH, "status": status})
    assert (data["status"], data["output_tokens"]) == (expected, 93)


def test_whole_numbers_with_a_point_are_counts() -> None:
    """Cohere's SDK has 507.0, as the guide has it sent, and each such event was a dead letter."""
    event = usage_event(account="a", source="s", model="command-a", input_tokens=507.0, output_tokens=30.0, seconds=1.5)
    (body,) = encoded([event])
    assert b'"input_tokens":507,"output_tokens":30,"seconds":1.5' in body
    assert isinstance(event["data"]["input_tokens"], int)
    spoken = data_of({"text": "hello", "usage": {"type": "duration", "seconds": 9.0}}, model="whisper-1")
    assert isinstance(spoken["audio_seconds"], int)


@pytest.mark.parametrize(("cost", "sent"), [("141.500000", b"141.5"), ("2.000000", b"2"), ("0.000002", b"2e-06")])
def test_a_cost_in_millionths_is_sent_as_the_guide_makes_it(cost: str, sent: bytes) -> None:
    """A Decimal: sending it ended with a TypeError."""
    event = usage_event(account="a", source="s", model="m", cost_microdollars=Decimal(cost))
    assert b'"cost_microdollars":' + sent + b"}" in encoded([event])[0]


@pytest.mark.parametrize("cost", ["12345678901.123456789", "NaN", "Infinity"])
def test_a_decimal_that_json_would_change_is_refused(cost: str) -> None:
    with pytest.raises(ValueError, match="more digits than a number of JSON keeps"):
        usage_event(account="a", source="s", model="m", cost_microdollars=Decimal(cost))


@pytest.mark.parametrize(
    "reranking",
    [
        {"id": "rerank-0b5c", "model": "m", "results": [], "usage": {"total_tokens": 56}},
        {"id": "0b5c", "results": [], "meta": {"billed_units": {"total_tokens": 56}, "tokens": {"total_tokens": 56}}},
    ],
    ids=["Jina's and vLLM's own", "LiteLLM's"],
)
def test_a_reranking_that_counts_only_a_total_has_it_as_input(reranking: dict[str, Any]) -> None:
    data = data_of(reranking, model="jina-reranker-v2")
    assert (data["input_tokens"], data["output_tokens"]) == (56, 0)


def test_reasoning_that_sglang_reports_beside_the_details_is_a_part_of_the_output() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60, "reasoning_tokens": 40}
    assert output_of(data_of({"id": "x", "usage": {**usage, "prompt_tokens_details": None}})) == (50, 40, None, None)


def test_thoughts_of_gemini_are_output_though_portkeys_total_also_has_what_tools_gave() -> None:
    """More reasoning than output was a dead letter."""
    usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 1_350}
    usage |= {"completion_tokens_details": {"reasoning_tokens": 200, "audio_tokens": 0}}
    portkey = {"id": "portkey-7c0e", "model": "gemini-2.5-pro", "usage": usage}
    assert output_of(data_of(portkey))[:2] == (250, 200)
    assert input_of(data_of(portkey))[0] == 100
    # LiteLLM counts thoughts within the output: the rest of the total is what tools gave.
    within = {**usage, "completion_tokens": 250}
    assert output_of(data_of({**portkey, "usage": within}))[:2] == (250, 200)


@pytest.mark.parametrize("name", ["chatcmpl-A1", "cmpl-A1", "koboldcpp"])
def test_responses_that_all_have_one_name_are_calls_of_their_own(name: str) -> None:
    """KoboldCpp's: all calls but the first were conflicts, and on no bill."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    first, second, again = (
        openai_usage({"id": name, "model": "m", "created": created, "usage": usage}, account="a", source="s")
        for created in (1_764_093_600, 1_764_093_601, 1_764_093_601)
    )
    assert first["id"] != second["id"]
    assert again == second
    assert second["id"].startswith(f"{name}-")


def test_an_id_that_its_sender_gives_a_stream_is_that_of_the_whole_and_of_no_part() -> None:
    """TGI's chunks have an empty id. The part took the id that it was given, and the whole was a conflict."""
    chunk: dict[str, Any] = {"id": "", "object": "chat.completion.chunk", "model": "m"}
    chunk |= {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    of_each: tuple[dict[str, Any], ...] = ({}, {"choices": []})
    part, whole = (
        openai_usage({**chunk, **more, "usage": usage}, account="a", source="s", response_id="call-7")
        for more in of_each
    )
    assert (whole["id"], part["id"].startswith("call-7-")) == ("call-7", True)
    assert part["data"]["request_id"] == whole["data"]["request_id"] == "call-7"
    assert part["data"]["usage_source"] == "partial"


@pytest.mark.parametrize(
    "failed",
    [
        {"choices": [{"finish_reason": "error", "error": {"code": 502}, "message": {"content": ""}}]},
        {"choices": [], "error": {"code": 502, "message": "Provider returned error"}},
    ],
    ids=["the answer", "the response"],
)
def test_an_answer_that_failed_is_no_completed_request(failed: dict[str, Any]) -> None:
    """OpenRouter's, with the HTTP status 200: a retry of the same request was billed as nothing beside it."""
    chat = {"id": "gen-1764031697-vqvW", "object": "chat.completion", "usage": NOTHING, **failed}
    assert data_of(chat)["status"] == "error"
    answered = {"choices": [{"finish_reason": "error"}, {"finish_reason": "stop"}]}
    assert data_of({**chat, "error": None, **answered})["status"] == "completed"


def test_the_last_chunk_of_groq_has_its_usage_in_a_member_of_groqs_own() -> None:
    usage = {"queue_time": 0.06, "prompt_tokens": 18, "completion_tokens": 439, "total_tokens": 457}
    chunk: dict[str, Any] = {"id": "chatcmpl-e7f8e220-656c-4455-a132-dacfc1370798", "object": "chat.completion.chunk"}
    chunk |= {"created": 1_729_171_479, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    own = {**chunk, "x_groq": {"id": "req_01jadadp0femyae9kav1gpkhe8", "usage": usage}}
    found = openai_usage({**own, "model": "m"}, account="a", source="s")
    assert (found["data"]["input_tokens"], found["data"]["output_tokens"]) == (18, 439)
    # With include_usage another chunk follows: it is the same event.
    assert openai_usage({**chunk, "model": "m", "choices": [], "usage": usage}, account="a", source="s") == found


def test_the_last_chunk_of_moonshot_has_its_usage_in_its_choice() -> None:
    usage = {"prompt_tokens": 39, "completion_tokens": 211, "total_tokens": 250, "cached_tokens": 7}
    chunk: dict[str, Any] = {"id": "chatcmpl-67c96964971a7a505b6ff17a", "object": "chat.completion.chunk"}
    chunk |= {"model": "moonshot-v1-8k"}
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}
    data = data_of({**chunk, "choices": [choice]})
    assert (*input_of(data)[:2], data["output_tokens"], data["status"]) == (39, 7, 211, "completed")
    # Of several answers nobody knows whether each counts the prompt.
    with pytest.raises(ValueError, match="has no usage yet"):
        data_of({**chunk, "choices": [choice, {**choice, "index": 1}]})


def test_what_qwens_responses_say_of_the_cache_in_their_own_list_is_read() -> None:
    """What was written to the cache was billed as other input, which costs less."""
    details = {"cache_creation": {"ephemeral_5m_input_tokens": 213}, "cache_creation_input_tokens": 213}
    usage: dict[str, Any] = {"input_tokens": 1_524, "output_tokens": 1_534, "total_tokens": 3_058}
    usage |= {"input_tokens_details": {"cached_tokens": 1_305}, "output_tokens_details": {"reasoning_tokens": 1_187}}
    usage |= {"x_details": [{"x_billing_type": "response_api", "prompt_tokens_details": details}]}
    assert input_of(data_of({"id": "resp_x", "usage": usage})) == (1_524, 1_305, 213, None, None)
    unsaid = {**usage, "input_tokens_details": {"cached_tokens": 0}}
    unsaid["x_details"] = [{"prompt_tokens_details": {**details, "cached_tokens": 1_305}}]
    assert input_of(data_of({"id": "resp_x", "usage": unsaid}))[1:3] == (1_305, 213)
    of_an_hour = {"cache_creation": {"ephemeral_1h_input_tokens": 213}, "cache_creation_input_tokens": 213}
    chat = {"prompt_tokens": 1_524, "completion_tokens": 1, "prompt_tokens_details": of_an_hour}
    assert data_of({"id": "x", "usage": chat})["cache_write_1h_tokens"] == 213
    for more in ({"x_tools": {"web_search": {"count": 2}}}, {"plugins": {"search": {"count": 2}}}):
        assert data_of({"id": "x", "usage": {**usage, **more}})["web_search_requests"] == 2


def test_a_number_where_durations_of_the_cache_may_be_ends_no_call() -> None:
    """It was an AttributeError, and the call was not sent."""
    details = {"cached_tokens": 60, "cache_creation": 30}
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "prompt_tokens_details": details}
    assert input_of(data_of({"id": "x", "usage": usage}))[:2] == (100, 60)


def test_no_audio_of_mistrals_is_no_seconds() -> None:
    """An empty object, with which a contract that reads `audio_seconds` made each chat a dead letter."""
    usage = {"prompt_tokens": 24, "completion_tokens": 27, "total_tokens": 51, "prompt_audio_seconds": {}}
    assert "audio_seconds" not in data_of({"id": "cf79f7daaee244b1a0ae5c7b1444424a", "usage": usage})
    cached = data_of({"id": "x", "usage": {**usage, "num_cached_tokens": 16}})
    assert (cached["input_tokens"], cached["cached_tokens"]) == (24, 16)


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 44}}]},
    ],
    ids=["the first", "after the end"],
)
def test_what_azures_content_filter_found_is_no_request(chunk: dict[str, Any]) -> None:
    """It has neither a name nor an id, and with the deployment as its model it was a request without usage."""
    unnamed = {"id": "", "object": "", "created": 0, "model": "", "usage": None}
    with pytest.raises(ValueError, match="send the last chunk with usage"):
        openai_usage({**unnamed, **chunk}, account="a", source="s", model="gpt-4o")


def test_googles_searches_are_counted_as_google_charges_for_them() -> None:
    """Different queries that are not empty. Without any, what tools gave the model is billed as input."""

    def data(queries: list[str]) -> dict[str, Any]:
        searched = {"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": queries}}
        found: dict[str, Any] = gemini_usage({**VERTEX, "candidates": [searched]}, account="a", source="s")["data"]
        return found

    found = data(["", "UEFA Euro 2024 winner", "", "Spain vs England", "Spain vs England"])
    assert (found["web_search_requests"], found["input_tokens"]) == (2, 1_000)
    empty = data([""])
    assert ("web_search_requests" in empty, empty["input_tokens"]) == (False, 1_030)


def test_the_tier_that_gemini_answered_by_goes_with_the_event() -> None:
    """Priority costs more and flex less than the standard: the API says it in a header alone."""
    usage = {name: value for name, value in VERTEX["usageMetadata"].items() if name != "trafficType"}
    response = {**VERTEX, "usageMetadata": usage}
    for name in ("x-gemini-service-tier", "X-Gemini-Service-Tier"):
        headers = {"Content-Type": "application/json", name: "priority"}
        found = gemini_usage({**response, "sdk_http_response": {"headers": headers}}, account="a", source="s")
        assert found["data"]["service_tier"] == "priority"
    by_json = {**response, "usageMetadata": {**usage, "serviceTier": "flex"}}
    assert gemini_usage(by_json, account="a", source="s")["data"]["service_tier"] == "flex"
    assert "service_tier" not in gemini_usage(response, account="a", source="s")["data"]


INTERACTION: dict[str, Any] = {
    "id": "v1_ChdPU0F4YWNtTkQ",
    "status": "completed",
    "model": "gemini-3.5-flash",
    "created": "2026-11-30T10:00:00Z",
    "service_tier": "flex",
    "usage": {
        "total_tokens": 1_280,
        "total_input_tokens": 1_000,
        "input_tokens_by_modality": [{"modality": "text", "tokens": 300}, {"modality": "audio", "tokens": 700}],
        "total_cached_tokens": 600,
        "cached_tokens_by_modality": [{"modality": "audio", "tokens": 600}],
        "total_output_tokens": 50,
        "total_thought_tokens": 200,
        "total_tool_use_tokens": 30,
    },
}


def test_an_interaction_of_geminis_counts_what_its_older_response_counts() -> None:
    """The names are those of google-genai 3.6: it was refused as a chunk without an id."""
    found = gemini_usage(INTERACTION, account="a", source="s")
    older = gemini_usage(VERTEX, account="a", source="s")["data"]
    assert (found["id"], found["data"]["service_tier"]) == (INTERACTION["id"], "flex")
    assert (input_of(found["data"]), output_of(found["data"])) == (input_of(older), output_of(older))
    as_json = {**INTERACTION, "usage": {"totalInputTokens": 7, "totalOutputTokens": 3}}
    assert input_of(gemini_usage(as_json, account="a", source="s")["data"])[0] == 7
    searched = [{"type": "google_search", "count": 2}, {"type": "google_maps", "count": 1}]
    grounded = {**INTERACTION, "usage": {**INTERACTION["usage"], "grounding_tool_count": searched}}
    data = gemini_usage(grounded, account="a", source="s")["data"]
    assert (data["web_search_requests"], data["input_tokens"]) == (2, 1_000)
    agent = {**INTERACTION, "model": None, "agent": "deep-research-pro"}
    assert gemini_usage(agent, account="a", source="s")["data"]["model"] == "deep-research-pro"


def test_an_interaction_that_is_not_over_is_refused() -> None:
    with pytest.raises(ValueError, match=r"v1_Ch.* has no usage yet"):
        gemini_usage({**INTERACTION, "status": "in_progress", "usage": None}, account="a", source="s")
    failed = gemini_usage({**INTERACTION, "status": "failed"}, account="a", source="s")
    assert failed["data"]["status"] == "error"


def test_that_claude_refused_goes_with_the_event() -> None:
    """Anthropic does not charge for all refusals, but counts their input."""
    usage = {"input_tokens": 106, "output_tokens": 0}
    refused = {"id": "msg_x", "model": "c", "stop_reason": "refusal", "stop_details": {"category": "cyber"}}
    data = anthropic_usage({**refused, "usage": usage}, account="a", source="s")["data"]
    assert (data["stop_reason"], data["refusal_category"], data["input_tokens"]) == ("refusal", "cyber", 106)
    ended = {**refused, "stop_reason": "end_turn", "stop_details": None, "usage": usage}
    assert "stop_reason" not in anthropic_usage(ended, account="a", source="s")["data"]
    unnamed = {**refused, "stop_details": None, "usage": usage}
    assert "refusal_category" not in anthropic_usage(unnamed, account="a", source="s")["data"]


def test_litellms_callback_takes_no_client_whose_coroutines_it_would_drop(tmp_path: Path) -> None:
    """LiteLLM calls it in a thread: each event was a coroutine that nobody awaited."""

    async def refused() -> None:
        async with AsyncClient("http://127.0.0.1:9", "key", outbox=tmp_path / "usage.outbox") as client:
            with pytest.raises(TypeError, match="give it a Client"):
                litellm_callback(client, source="litellm", account=lambda _: "acme")  # type: ignore[arg-type]

    asyncio.run(refused())


def test_litellms_callback_sends_a_batch_once_it_is_over() -> None:
    sender = Sender()
    callback = litellm_callback(sender, source="litellm", account=lambda _: "acme")
    ended = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(ValueError, match="has no usage yet"):
        callback({"model": "gpt-5.6-luna"}, {**BATCH, "status": "validating", "usage": NOTHING}, ended, ended)
    callback({"model": None}, BATCH, ended, ended)
    (event,) = sender.sent
    assert (event["id"], event["data"]["input_tokens"]) == (BATCH["id"], 300_000)


def test_embeddings_that_litellms_own_cache_answered_took_nothing() -> None:
    """They have no id, by which they were a repeat of the first answer: each was billed again."""
    sender = Sender()
    callback = litellm_callback(sender, source="litellm", account=lambda _: "acme")
    ended = datetime(2026, 1, 2, tzinfo=UTC)
    embeddings = {"object": "list", "model": "e", "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    for cache_hit in (None, False, True):
        callback({"cache_hit": cache_hit}, embeddings, ended, ended)
    asked, again, cached = (event["data"] for event in sender.sent)
    assert [data["input_tokens"] for data in (asked, again, cached)] == [8, 8, 0]
    assert (cached["output_tokens"], cached["cached"], "cached" in again) == (0, True, False)
    callback({"cache_hit": True}, {"type": "message", "model": "c", "usage": None}, ended, ended)
    assert (sender.sent[-1]["data"]["input_tokens"], sender.sent[-1]["data"]["cached"]) == (0, True)
    # What has an id may come before the first answer, which would be the repeat then.
    chat = {"id": "chatcmpl-7c", "model": "m", "usage": {"prompt_tokens": 8, "completion_tokens": 1}}
    callback({"cache_hit": True}, chat, ended, ended)
    assert (sender.sent[-1]["id"], sender.sent[-1]["data"]["input_tokens"]) == ("chatcmpl-7c", 8)


def test_an_event_of_a_stream_that_has_the_response_is_billed_as_the_response() -> None:
    """With `model` given it was a request without usage, and the one that had it was on no bill."""
    counts = {"input_tokens": 139, "output_tokens": 438, "total_tokens": 577}
    response = {"id": "resp_68a1c", "object": "response", "status": "completed", "model": "gpt-5.6", "usage": counts}
    completed = {"type": "response.completed", "sequence_number": 9, "response": response}
    for data in (data_of(completed), data_of(completed, model="gpt-5.6")):
        assert (data["request_id"], data["input_tokens"], data["output_tokens"]) == ("resp_68a1c", 139, 438)
    done = {"type": "response.done", "response": {"id": "resp_9f2", "object": "realtime.response", "usage": counts}}
    assert data_of(done, model="gpt-realtime")["input_tokens"] == 139
    cut = {**completed, "type": "response.incomplete", "response": {**response, "status": "incomplete"}}
    assert data_of(cut)["output_tokens"] == 438
    started = {
        **completed,
        "type": "response.created",
        "response": {**response, "status": "in_progress", "usage": None},
    }
    with pytest.raises(ValueError, match="resp_68a1c has no usage yet"):
        data_of(started, model="gpt-5.6")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "response.output_text.delta", "delta": "Hi", "item_id": "msg_1"},
        {"type": "image_generation.partial_image", "partial_image_index": 0, "b64_json": ""},
        {"type": "speech.audio.delta", "audio": ""},
        {"type": "transcript.text.delta", "delta": "Hi"},
        {"id": "batch_req_1", "custom_id": "c", "response": {"status_code": 200, "body": {"id": "chatcmpl-1"}}},
    ],
)
def test_parts_of_streams_of_images_speech_and_text_are_refused(part: dict[str, Any]) -> None:
    """They name no model, so one is given: each was a completed request with an id of its own."""
    with pytest.raises(ValueError, match="has no usage yet"):
        data_of(part, model="gpt-image-1")


def test_the_last_event_of_images_speech_and_text_has_the_usage() -> None:
    counts = {"input_tokens": 50, "output_tokens": 60, "input_tokens_details": {"text_tokens": 10, "image_tokens": 40}}
    data = data_of({"type": "image_generation.completed", "b64_json": "", "usage": counts}, model="gpt-image-1")
    assert (data["input_tokens"], data["image_input_tokens"]) == (50, 40)


def test_of_coheres_own_api_what_it_bills_is_input_and_output() -> None:
    """With `model` given it was a request without usage, as the counts are within `billed_units`."""
    data = data_of(COHERE, model="command-a")
    assert (data["input_tokens"], data["output_tokens"]) == (5, 418)
    embedded = {
        "id": "da6e531f-54c5",
        "embeddings": {},
        "meta": {"billed_units": {"input_tokens": 2.0, "images": None}},
    }
    data = data_of(embedded, model="embed-v4.0")
    assert (data["input_tokens"], data["output_tokens"]) == (2, 0)


@pytest.mark.parametrize("status", [{"type": "redeemed"}, {"type": "not_applied", "reason": "expired"}])
def test_whether_claude_redeemed_a_credit_goes_with_the_event(status: dict[str, str]) -> None:
    """A retry that redeemed the credit of a refusal is billed as if its conversation had been on that model all along,
    so its cache writes cost what reads do, a twelfth (Anthropic's page on fallback credit; `usage.fallback_credit`).
    """
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 90_000}
    retry = {"id": "msg_y", "model": "c", "stop_reason": "end_turn", "usage": usage}
    assert "fallback_credit" not in anthropic_usage(retry, account="a", source="s")["data"]
    cases: list[tuple[object, str | None]] = [
        ({"status": status}, status["type"]),
        ({}, None),
        ({"status": None}, None),
    ]
    for credit, expected in cases:
        answered = {**retry, "usage": {**usage, "fallback_credit": credit}}
        data = anthropic_usage(answered, account="a", source="s")["data"]
        assert (data.get("fallback_credit"), data["cache_write_tokens"]) == (expected, 90_000)
