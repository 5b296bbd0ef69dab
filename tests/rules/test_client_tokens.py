"""What providers count beside, within or above the input and output becomes parts that share no token, all of them
within their whole: such a report is billed once, in full, and is no dead letter.

The responses are those of the SDKs' types (openai 3.57, anthropic 2.14, google-genai 3.6) and of xAI's guide.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.contracts.shipped import shipped
from weir_client import anthropic_usage, gemini_usage, litellm_callback, openai_usage
from weir_client.tokens import openai_tokens

INPUT = ("cached_tokens", "cache_write_tokens", "audio_input_tokens", "image_input_tokens")
OUTPUT = ("reasoning_tokens", "audio_output_tokens", "image_output_tokens")


def data_of(response: dict[str, Any], **given: Any) -> dict[str, Any]:
    data: dict[str, Any] = openai_usage({"model": "m", **response}, account="a", source="s", **given)["data"]
    return data


def input_of(data: dict[str, Any]) -> tuple[int | None, ...]:
    return data.get("input_tokens"), *(data.get(part) for part in INPUT)


def output_of(data: dict[str, Any]) -> tuple[int | None, ...]:
    return data.get("output_tokens"), *(data.get(part) for part in OUTPUT)


REALTIME: dict[str, Any] = {
    "id": "resp_1",
    "object": "realtime.response",
    "status": "completed",
    "usage": {
        "total_tokens": 1_300,
        "input_tokens": 1_000,
        "output_tokens": 300,
        "input_token_details": {
            "text_tokens": 200,
            "audio_tokens": 700,
            "image_tokens": 100,
            "cached_tokens": 640,
            "cached_tokens_details": {"text_tokens": 64, "audio_tokens": 512, "image_tokens": 64},
        },
        "output_token_details": {"text_tokens": 60, "audio_tokens": 240},
    },
}
"""As `response.done` has it: `token_details`, not `tokens_details`, and no model."""


def test_audio_of_realtime_is_audio_and_what_of_it_was_cached_is_cached() -> None:
    data = data_of(REALTIME, model="gpt-realtime")
    assert data["model"] == "gpt-realtime"
    assert input_of(data) == (1_000, 640, None, 188, 36)
    assert output_of(data) == (300, None, 240, None)


def test_images_and_transcriptions_are_read_though_they_name_no_model() -> None:
    with pytest.raises(KeyError, match="model"):
        openai_usage({"created": 1, "usage": {}}, account="a", source="s")
    image = {
        "created": 1_764_093_600,
        "usage": {
            "total_tokens": 4_500,
            "input_tokens": 340,
            "output_tokens": 4_160,
            "input_tokens_details": {"text_tokens": 17, "image_tokens": 323},
        },
    }
    data = data_of(image, model="gpt-image-1")
    assert (data["input_tokens"], data["image_input_tokens"], data["output_tokens"]) == (340, 323, 4_160)
    spoken = {"text": "hello", "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}}
    spoken["usage"]["input_token_details"] = {"text_tokens": 4, "audio_tokens": 10}  # type: ignore[index]
    assert input_of(data_of(spoken, model="gpt-4o-transcribe")) == (14, None, None, 10, None)
    by_time = data_of({"text": "hello", "usage": {"type": "duration", "seconds": 9}}, model="whisper-1")
    assert by_time["audio_seconds"] == 9


def test_reasoning_that_is_counted_beside_the_output_is_part_of_it() -> None:
    grok = {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "total_tokens": 135,
        "prompt_tokens_details": {"text_tokens": 32, "audio_tokens": 0, "image_tokens": 0, "cached_tokens": 6},
        "completion_tokens_details": {"reasoning_tokens": 94, "audio_tokens": 0},
    }
    assert output_of(data_of({"id": "x", "usage": grok})) == (103, 94, 0, None)
    # Gemini's compatible API has it in the total alone.
    gemini = {"prompt_tokens": 8, "completion_tokens": 10, "total_tokens": 520}
    assert output_of(data_of({"id": "x", "model": "models/gemini-2.5-pro", "usage": gemini})) == (512, 502, None, None)
    # What a total has for another reason is no output: what Google's search gave (LiteLLM), and Mistral's audio.
    grounded = {**gemini, "completion_tokens_details": {"text_tokens": 10}}
    assert output_of(data_of({"id": "x", "model": "gemini-2.5-flash", "usage": grounded})) == (10, None, None, None)
    voxtral = {"prompt_audio_seconds": 203, "prompt_tokens": 4, "completion_tokens": 635, "total_tokens": 3_264}
    data = data_of({"id": "x", "model": "voxtral-mini-latest", "usage": voxtral})
    assert (*output_of(data), data["audio_seconds"]) == (635, None, None, None, 203)


def test_images_that_came_from_the_cache_in_a_number_that_nobody_says_are_no_dead_letter() -> None:
    usage: dict[str, Any] = {"prompt_tokens": 1_100, "completion_tokens": 5, "total_tokens": 1_105}
    usage |= {"prompt_tokens_details": {"text_tokens": 100, "image_tokens": 1_000, "cached_tokens": 1_050}}
    assert input_of(data_of({"id": "x", "usage": usage})) == (1_100, 1_050, None, None, 50)


@pytest.mark.parametrize(("read", "written"), [(5_000, 200), (400, 0), (0, 300)])
def test_what_the_cache_gave_beside_the_input_is_added_where_the_total_proves_it(read: int, written: int) -> None:
    """Portkey's of Anthropic: it was billed as if it were within the input, or was a dead letter for being more."""
    usage: dict[str, Any] = {"prompt_tokens": 1_000, "completion_tokens": 50, "total_tokens": 1_050 + read + written}
    usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    assert input_of(data_of({"id": "x", "usage": usage})) == (1_000 + read + written, read, written, None, None)
    within = {**usage, "prompt_tokens": 1_000 + read + written}
    assert input_of(data_of({"id": "x", "usage": within})) == (1_000 + read + written, read, written, None, None)
    # xAI's cached tokens are input, and its reasoning is beside the output, even if they are as many.
    grok = {"prompt_tokens": 1_000, "completion_tokens": 50, "total_tokens": 1_450, "cached_tokens": 400}
    thought = data_of({"id": "x", "usage": {**grok, "completion_tokens_details": {"reasoning_tokens": 400}}})
    assert (thought["input_tokens"], thought["output_tokens"]) == (1_000, 450)


@pytest.mark.parametrize("is_litellm", [False, True])
def test_what_perplexity_reasons_and_cites_beside_the_answer_is_reported(is_litellm: bool) -> None:
    """Its guide's example of deep research: three quarters of what it charges were in no quantity."""
    usage: dict[str, Any] = {"prompt_tokens": 33, "completion_tokens": 11_395, "total_tokens": 11_428}
    usage |= {"citation_tokens": 19_028, "num_search_queries": 21}
    usage |= (
        {"completion_tokens_details": {"reasoning_tokens": 193_947}} if is_litellm else {"reasoning_tokens": 193_947}
    )
    data = data_of({"id": "x", "usage": usage})
    assert output_of(data) == (11_395 + 193_947, 193_947, None, None)
    assert (data["input_tokens"], data["citation_tokens"], data["web_search_requests"]) == (33, 19_028, 21)
    without = {**usage, "completion_tokens_details": None, "reasoning_tokens": None}
    assert output_of(data_of({"id": "x", "usage": without})) == (11_395, None, None, None)


counts = st.integers(0, 50)


@given(text=counts, audio=counts, image=counts, cached=st.tuples(counts, counts, counts), has_details=st.booleans())
def test_no_token_of_the_input_is_in_two_parts(
    text: int, audio: int, image: int, cached: tuple[int, int, int], has_details: bool
) -> None:
    """The oracle: what is uncached of each modality, where that is known."""
    of_cache = [min(*pair) for pair in zip((text, audio, image), cached, strict=True)]
    read: dict[str, Any] = {"audio_tokens": audio, "image_tokens": image, "cached_tokens": sum(of_cache)}
    if has_details:
        names = ("text_tokens", "audio_tokens", "image_tokens")
        read["cached_tokens_details"] = dict(zip(names, of_cache, strict=True))
    found = openai_tokens({"prompt_tokens": text + audio + image, "prompt_tokens_details": read})
    assert sum(found[part] or 0 for part in INPUT) <= text + audio + image
    assert found["cached_tokens"] == sum(of_cache)
    if has_details:
        assert (found["audio_input_tokens"], found["image_input_tokens"]) == (audio - of_cache[1], image - of_cache[2])


def test_embeddings_that_count_only_a_total_have_it_as_input() -> None:
    data = data_of({"object": "list", "data": [], "usage": {"total_tokens": 10}})
    assert (data["input_tokens"], data["output_tokens"]) == (10, 0)


def test_what_decides_the_price_of_a_call_is_reported_with_it() -> None:
    chat = {"id": "x", "service_tier": "flex", "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    assert data_of(chat)["service_tier"] == "flex"
    assert data_of(chat, service_tier="mine")["service_tier"] == "mine"
    perplexity = {"id": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 1, "search_context_size": "high"}}
    assert data_of(perplexity)["search_context_size"] == "high"
    usage = {"input_tokens": 1, "output_tokens": 1, "service_tier": "batch", "speed": "fast", "inference_geo": "us"}
    data = anthropic_usage({"id": "m", "model": "c", "usage": usage}, account="a", source="s")["data"]
    assert (data["service_tier"], data["speed"], data["inference_geo"]) == ("batch", "fast", "us")


def test_searches_of_the_web_are_reported() -> None:
    tools = {"tool_usage": {"image_gen": {}, "web_search": {"num_requests": 3}}}
    assert data_of({"id": "x", "usage": {"input_tokens": 1, "output_tokens": 1}, **tools})["web_search_requests"] == 3
    usage = {"input_tokens": 1, "output_tokens": 1, "server_tool_use": {"web_search_requests": 2}}
    data = anthropic_usage({"id": "m", "model": "c", "usage": usage}, account="a", source="s")["data"]
    assert data["web_search_requests"] == 2
    litellm = {"prompt_tokens": 1, "completion_tokens": 1, "server_tool_use": {"web_search_requests": 2}}
    assert data_of({"id": "x", "usage": litellm})["web_search_requests"] == 2
    for more in ({"server_side_tool_usage_details": {"web_search_calls": 4}}, {"num_search_queries": 4}):
        grok_or_perplexity = {"prompt_tokens": 1, "completion_tokens": 1, **more}
        assert data_of({"id": "x", "usage": grok_or_perplexity})["web_search_requests"] == 4


def test_what_qwens_explicit_cache_takes_is_written_to_the_cache() -> None:
    read = {"cached_tokens": 0, "cache_creation_input_tokens": 1_605, "cache_type": "ephemeral"}
    usage = {"prompt_tokens": 1_700, "completion_tokens": 1, "prompt_tokens_details": read}
    assert input_of(data_of({"id": "x", "usage": usage})) == (1_700, 0, 1_605, None, None)


def test_a_time_in_milliseconds_is_that_time() -> None:
    """As some gateways write `created`: the year 57,871 ended the call with an error."""
    times = {
        openai_usage({**given, "id": "x", "model": "m"}, account="a", source="s")["time"]
        for given in (
            {"created": 1_764_093_600},
            {"created": 1_764_093_600_000},
            {"created_at": 1_764_093_600.0},
        )
    }
    assert times == {"2025-11-25T18:00:00Z"}


def test_what_litellm_says_of_anthropics_cache_of_an_hour_is_read_too() -> None:
    read: dict[str, Any] = {"cached_tokens": 0, "cache_creation_tokens": 90}
    read |= {"cache_creation_token_details": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 60}}
    data = data_of({"id": "x", "usage": {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": read}})
    assert (data["cache_write_tokens"], data["cache_write_1h_tokens"]) == (90, 60)


def test_a_compaction_of_anthropics_is_billed_with_its_message_and_thinking_is_reasoning() -> None:
    usage = {
        "input_tokens": 23_000,
        "output_tokens": 1_000,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 400},
        "iterations": [
            {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500, "cache_read_input_tokens": 5},
            {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000, "cache_read_input_tokens": 7},
        ],
    }
    data = anthropic_usage({"id": "m", "model": "c", "usage": usage}, account="a", source="s")["data"]
    assert input_of(data) == (203_012, 12, 0, None, None)
    assert output_of(data) == (4_500, 400, None, None)


VERTEX: dict[str, Any] = {
    "responseId": "r-1",
    "modelVersion": "gemini-2.5-pro",
    "candidates": [{"finishReason": "STOP", "content": {}}],
    "usageMetadata": {
        "promptTokenCount": 1_000,
        "cachedContentTokenCount": 600,
        "candidatesTokenCount": 50,
        "thoughtsTokenCount": 200,
        "toolUsePromptTokenCount": 30,
        "totalTokenCount": 1_280,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 300}, {"modality": "AUDIO", "tokenCount": 700}],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 600}],
        "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 50}],
        "trafficType": "ON_DEMAND",
    },
}


def test_gemini_counts_thoughts_beside_the_output_and_what_tools_gave_beside_the_prompt() -> None:
    found = gemini_usage(VERTEX, account="a", source="s")
    assert (found["id"], found["data"]["model"], found["data"]["service_tier"]) == (
        "r-1",
        "gemini-2.5-pro",
        "ON_DEMAND",
    )
    assert input_of(found["data"]) == (1_030, 600, None, 100, None)
    assert output_of(found["data"]) == (250, 200, None, None)
    assert sum(input_of(found["data"])[:1] + output_of(found["data"])[:1]) == 1_280  # type: ignore[arg-type]
    # What Google's own search gave the model is not billed as input.
    searched = {"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["weir"]}}
    data = gemini_usage({**VERTEX, "candidates": [searched]}, account="a", source="s")["data"]
    assert data["input_tokens"] == 1_000


@pytest.mark.parametrize("name", ["chat.completion.chunk", "text_completion"])
def test_each_chunk_of_a_stream_that_has_the_usage_so_far_is_a_partial_report_of_one_request(name: str) -> None:
    """vLLM's `continuous_usage_stats`."""

    def chunk(tokens: int, choices: list[dict[str, Any]]) -> Any:
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        given = {"id": "chatcmpl-7c", "object": name, "created": 1, "model": "m", "choices": choices, "usage": usage}
        return openai_usage(given, account="a", source="s")

    running = {"index": 0, "delta": {"content": "."}, "finish_reason": None}
    parts = [chunk(tokens, [running]) for tokens in (0, 1, 2)]
    last, whole = chunk(3, [{**running, "finish_reason": "stop"}]), chunk(3, [])
    assert len({event["id"] for event in (*parts, last)}) == 4
    assert {event["data"]["request_id"] for event in (*parts, last)} == {"chatcmpl-7c"}
    assert [event["data"].get("usage_source") for event in (*parts, last)] == ["partial"] * 3 + [None]
    # Completed ranks above cancelled, so a part would bill in place of what a cancelled stream took in the end.
    assert [event["data"]["status"] for event in (*parts, last)] == ["cancelled"] * 3 + ["completed"]
    assert last == whole
    # Of several partial reports the later one is better.
    assert all(datetime.fromisoformat(event["time"]) > datetime(2026, 1, 1, tzinfo=UTC) for event in parts)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"role": "assistant", "content": ""}, "native_finish_reason": None, "logprobs": None},
        {"delta": {}},
        {"delta": {"content": None, "function_call": None, "refusal": None, "role": None, "tool_calls": None}},
    ],
    ids=["OpenRouter", "LiteLLM's proxy", "LiteLLM's proxy, as OpenAI's SDK reads it"],
)
def test_the_last_chunk_of_a_gateway_is_whole_though_its_choice_has_not_ended(choice: dict[str, Any]) -> None:
    """OpenAI's own has no choice. As a part it was billed as cancelled, and only after its time-out."""
    usage = {"prompt_tokens": 1_697, "completion_tokens": 52, "total_tokens": 1_749}
    chunk: dict[str, Any] = {"id": "gen-1764031697-vqvW", "object": "chat.completion.chunk", "created": 1_764_031_697}
    chunk |= {"model": "openai/gpt-4o", "choices": [{"index": 0, "finish_reason": None, **choice}]}
    found = openai_usage({**chunk, "usage": usage}, account="a", source="s")
    assert found == openai_usage({**chunk, "choices": [], "usage": usage}, account="a", source="s")
    with pytest.raises(ValueError, match="has no usage yet"):
        openai_usage(chunk, account="a", source="s")


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": ""}},
        {"delta": {}, "token_ids": [42]},
        {"delta": {"content": None, "tool_calls": [{"index": 0}]}},
    ],
    ids=["the first", "half a character", "tokens that a parser keeps", "a tool call"],
)
def test_a_chunk_of_vllm_without_any_text_is_a_partial_report_still(choice: dict[str, Any]) -> None:
    """As the whole answer it would be billed in place of it, and that were a conflict."""
    chunk: dict[str, Any] = {"id": "chatcmpl-7c", "object": "chat.completion.chunk", "model": "m"}
    chunk |= {"choices": [{"finish_reason": None, **choice}], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
    assert openai_usage(chunk, account="a", source="s")["data"]["usage_source"] == "partial"


@pytest.mark.parametrize("small", ["chatcmpl-42", "", None])
def test_a_chunk_that_cannot_be_told_to_be_of_the_same_stream_as_the_last_one_is_refused(small: str | None) -> None:
    """Both would be billed. A stream that was cut off is billed by the chunk of which that is said."""
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    chunk: dict[str, Any] = {"id": small, "object": "chat.completion.chunk", "model": "m", "usage": usage}
    chunk |= {"choices": [{"finish_reason": None}]}
    with pytest.raises(ValueError, match="send the last chunk alone"):
        openai_usage(chunk, account="a", source="s")
    data = openai_usage(chunk, account="a", source="s", status="cancelled")["data"]
    assert (data["status"], data["output_tokens"]) == ("cancelled", 2)


def test_parts_of_a_stream_that_are_called_whole_answers_are_partial_reports_still() -> None:
    """Perplexity's, each with the usage so far: the first one, of one token, was billed as the whole answer."""

    def part(tokens: int, finish_reason: str | None) -> dict[str, Any]:
        said = {"role": "assistant", "content": "a"}
        choice = {"index": 0, "finish_reason": finish_reason, "message": said, "delta": said}
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        given = {"id": "ab7cac59-7b92", "object": "chat.completion", "created": 1_740_046_265, "model": "sonar"}
        return openai_usage({**given, "usage": usage, "choices": [choice]}, account="a", source="s")

    first, second, last = part(1, None), part(2, None), part(3, "stop")
    assert len({event["id"] for event in (first, second, last)}) == 3
    assert [event["data"].get("usage_source") for event in (first, second, last)] == ["partial", "partial", None]
    assert {event["data"]["request_id"] for event in (first, second, last)} == {last["id"]}


@pytest.mark.parametrize("goes_on", ["", "FINISH_REASON_UNSPECIFIED"])
def test_an_answer_that_goes_on_has_not_ended_whatever_is_written_for_it(goes_on: str) -> None:
    """SGLang, GenieX and older Ollama write an empty text, and protocol buffers their default."""
    chunk: dict[str, Any] = {"id": "b2946a2aa557", "object": "chat.completion.chunk", "model": "m"}
    chunk |= {"choices": [{"delta": {"content": "a"}, "finish_reason": goes_on}]}
    with pytest.raises(ValueError, match="has no usage yet"):
        openai_usage(chunk, account="a", source="s")
    counted = {**chunk, "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
    gemini = {**VERTEX, "candidates": [{"content": {}, "finishReason": goes_on}]}
    for event in (
        openai_usage(counted, account="a", source="s"),
        gemini_usage(gemini, account="a", source="s"),
    ):
        assert (event["data"]["status"], event["data"]["usage_source"]) == ("cancelled", "partial")


def test_an_old_completion_whose_stream_is_not_over_is_refused_without_usage() -> None:
    part = {"id": "cmpl-7c", "object": "text_completion", "model": "m", "choices": [{"finish_reason": None}]}
    with pytest.raises(ValueError, match="has no usage yet"):
        openai_usage(part, account="a", source="s")


def test_the_beginning_of_a_stream_of_anthropics_or_geminis_is_a_partial_report_too() -> None:
    message = {"id": "msg_x", "model": "c", "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    part = anthropic_usage(message, account="a", source="s")
    whole = anthropic_usage({**message, "stop_reason": "end_turn"}, account="a", source="s")
    chunk = gemini_usage({**VERTEX, "candidates": [{"content": {}}]}, account="a", source="s")
    last = gemini_usage(VERTEX, account="a", source="s")
    for first, second in ((part, whole), (chunk, last)):
        assert (first["data"]["status"], first["data"]["usage_source"]) == ("cancelled", "partial")
        assert "usage_source" not in second["data"]
        assert first["id"] != second["id"]
        assert first["data"]["request_id"] == second["data"]["request_id"] == second["id"]


def test_a_part_of_a_stream_of_gemini_that_has_no_id_is_refused() -> None:
    """Each part would be another whole answer, and all of them would be billed."""
    chunk = {**VERTEX, "responseId": None, "candidates": [{"content": {}}]}
    with pytest.raises(ValueError, match="send the last chunk alone"):
        gemini_usage(chunk, account="a", source="s")
    assert gemini_usage(chunk, account="a", source="s", status="cancelled")["data"]["status"] == "cancelled"
    assert gemini_usage({**VERTEX, "responseId": None}, account="a", source="s")["data"]["status"] == "completed"


@pytest.mark.parametrize(
    ("chunk", "is_whole"),
    [
        ({"usageMetadata": {"trafficType": "ON_DEMAND"}}, False),
        ({"usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7}}, False),
        ({"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}}, True),
        (
            {
                "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7},
                "promptFeedback": {"blockReason": "SAFETY"},
            },
            True,
        ),
    ],
    ids=["as Vertex begins", "of the prompt alone", "the usage after the end", "a prompt that is blocked"],
)
def test_a_chunk_of_gemini_without_an_answer_is_whole_only_where_it_says_how_that_ended(
    chunk: dict[str, Any], is_whole: bool
) -> None:
    """Vertex sends some of `gemini-3` at the beginning. As the whole answer, of no tokens, one was billed for it."""
    names = {"responseId": "r-1", "modelVersion": "gemini-3.1-flash-lite"}
    found = gemini_usage({**names, **chunk}, account="a", source="s")
    assert (found["data"]["status"], found["id"] == "r-1") == (
        ("completed", True) if is_whole else ("cancelled", False)
    )
    assert found["data"]["request_id"] == "r-1"


@pytest.mark.parametrize("missing", ["input_tokens", "output_tokens"])
def test_a_message_of_anthropics_without_its_count_is_not_one_of_0_tokens(missing: str) -> None:
    usage = {"input_tokens": 9, "output_tokens": 1}
    del usage[missing]
    with pytest.raises(KeyError, match=missing):
        anthropic_usage({"id": "msg_x", "model": "c", "usage": usage}, account="a", source="s")


class Sender:
    """Keeps what LiteLLM's callback sends."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, event: Any, /) -> None:
        self.sent.append(event)


def test_litellms_callback_reads_anthropics_own_messages_and_names_the_model_where_the_response_does_not() -> None:
    sender = Sender()
    callback = litellm_callback(sender, source="litellm", account=lambda _: "acme")
    ended = datetime(2026, 1, 2, tzinfo=UTC)
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30}
    callback({"model": "x"}, {"type": "message", "id": "msg_x", "model": "c", "usage": usage}, ended, ended)
    callback({"model": "gpt-image-1"}, {"usage": {"input_tokens": 1, "output_tokens": 2}}, ended, ended)
    ranked = {"id": "9b1c", "results": [], "meta": {"billed_units": {"search_units": 2}}}
    callback({"model": "cohere/rerank-v3.5"}, ranked, ended, ended)
    assert sender.sent.pop()["data"].items() >= {"model": "cohere/rerank-v3.5", "search_units": 2}.items()
    message, image = (event["data"] for event in sender.sent)
    assert (message["model"], *input_of(message)) == ("c", 100, 60, 30, None, None)
    assert (image["model"], image["output_tokens"]) == ("gpt-image-1", 2)


def test_no_shipped_contract_gives_another_meaning_to_what_is_reported_besides() -> None:
    names = {"cache_write_1h_tokens", "web_search_requests", "audio_seconds", "search_units"}
    names |= {"service_tier", "speed", "inference_geo", "fallback_credit", "compaction_input_tokens"}
    of_contract = shipped()["ai.inference.usage.v1"]["properties"]["data"]["properties"]
    assert not names & of_contract.keys()
