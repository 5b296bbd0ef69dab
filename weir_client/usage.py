"""Responses of providers → events `ai.inference.usage.v1`. They read attributes or keys, and import no provider's SDK.

The event's `id` is the response's: the same response, sent twice, is billed once. Where that is a small number or one
word, which other responses soon have, too, a digest of the whole response is part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from inspect import iscoroutinefunction
from typing import Any, Protocol
from uuid import uuid4

from weir_client.encoding import rfc3339
from weir_client.streams import is_of_a_stream, is_open, is_streamed, response_of
from weir_client.tokens import (
    WEB_SEARCHES,
    anthropic_tokens,
    first,
    gemini_searches,
    gemini_tokens,
    metadata_of_interaction,
    openai_tokens,
    snake,
)

TYPE = "ai.inference.usage.v1"
RUNNING = ("queued", "in_progress", "validating", "finalizing", "cancelling", "waiting")
"""Of OpenAI's responses, batches and turns that are not over; a batch has 0 as its usage until it is."""
ASKS = "requires_action"
"""The status of an assistant's run that waits for a tool, and counts nothing until it is over. An interaction of
Gemini's that asks for one has ended, and counts.
"""
STATUSES = {"failed": "error", "cancelled": "cancelled"}
"""Of those; any other that is over has completed."""
MESSAGE = "message"
"""The `type` of Anthropic's, whose input does not include what the cache gave or took."""
FAILED = "error"
"""The `finish_reason` of an answer that failed, as OpenRouter and Mistral write it."""
BILLED = ("input_tokens", "output_tokens", "total_tokens")
"""What Cohere bills; beside it are `tokens`, which also count what Cohere adds to the prompt."""
GEMINI_TIER = "x-gemini-service-tier"
"""The header that says by which tier Gemini answered. Google's SDK has headers with the response."""
Event = dict[str, Any]
_FIRST_MILLISECONDS = 10**11
"""So many seconds are the year 5138, and so many milliseconds 1973."""
_NO_NAME = re.compile(r"(?:[A-Za-z]+[-_.])*[A-Za-z]?[0-9]{1,13}|[A-Za-z]{1,12}|(?:[a-z]{1,12}[-.]){2,}[a-z]{1,12}")
"""Ollama, and servers like it, number their responses at random below 999, and others in turn, by the second or by the
millisecond (Portkey). KoboldCpp calls all of them `chatcmpl-A1` or `koboldcpp`, and FastFlowLM
`fastflowlm-chat-completion`. Two of them would be one event with two contents, of which one is billed.
"""


class _Sender(Protocol):
    def send(self, event: Mapping[str, Any], /) -> None: ...


def usage_event(
    *, account: str, source: str, model: str, response_id: str | None = None, time: datetime | None = None, **data: Any
) -> Event:
    """One call of a model that `account` is billed for. `source` names your service; `data` are its other fields.

    Fields that are None are left out, and a number as Cohere's SDK has them, 507.0, is 507. `response_id`: left out,
    each call of this function is another event.
    """
    mark = response_id or uuid4().hex
    fields = {"request_id": mark, "model": model, "status": "completed", **data}
    return {
        "type": TYPE,
        "source": source,
        "id": mark,
        "subject": account,
        "time": rfc3339(time or datetime.now(UTC)),
        "data": {name: _number(value) for name, value in fields.items() if value is not None},
    }


def openai_usage(response: Any, *, account: str, source: str, time: datetime | None = None, **data: Any) -> Event:
    """Of a response of OpenAI's, or of a compatible API or gateway: chat completions, responses, embeddings,
    rerankings, images, transcriptions, a batch, or what `response.done` of realtime has. Where it names no `model`,
    give it. A message of Anthropic is read as `anthropic_usage` reads it.

    Raises ValueError for a chunk without usage, and for a response or a batch that is not over: each has the id of the
    one that has the usage. A chunk with the usage so far is a partial report of its request, which the last one
    replaces; it raises ValueError, too, where the stream has no id but a small number or one word, unless you give its
    `status`.
    """
    given = response_of(_plain(response))
    if given.get("type") == MESSAGE:
        return anthropic_usage(given, account=account, source=source, time=time, **data)
    of_cohere = (given.get("meta") or {}, given.get("usage") or {})
    billed: Mapping[str, Any] = next((found["billed_units"] for found in of_cohere if found.get("billed_units")), {})
    usage = _usage(given, billed)
    is_part = is_streamed(given) and is_open(given.get("choices"))
    status = given.get("status")
    is_running = status in RUNNING or (status == ASKS and not usage)
    if is_running or (not usage and (is_part or is_of_a_stream(given))):
        raise ValueError(
            f"{given.get('id')} has no usage yet: of a stream send the last chunk with usage (OpenAI reports it with "
            'stream_options={"include_usage": True}), of a background response or a batch the one that is over, and of'
            " a line of a batch's output the body"
        )
    created = given.get("created") or given.get("created_at")
    is_gemini = "gemini" in str(data.get("model") or given.get("model")).lower()
    has_no_output = given.get("object") == "list" or "results" in given or "embeddings" in given
    tokens = openai_tokens(usage, has_no_output=has_no_output, is_gemini=is_gemini)
    searches = ((given.get("tool_usage") or {}).get("web_search") or {}).get("num_requests")
    found = {
        "status": STATUSES.get(status or "", "error" if _has_failed(given) else "completed"),
        "service_tier": first(given.get("service_tier"), usage.get("service_tier"), _traffic_type(usage)),
        # LiteLLM keeps Anthropic's here. Others measure how fast they wrote.
        **{name: usage[name] for name in ("speed", "inference_geo") if isinstance(usage.get(name), str)},
        "search_context_size": usage.get("search_context_size"),
        **tokens,
        WEB_SEARCHES: first(tokens[WEB_SEARCHES], searches),
        "search_units": billed.get("search_units"),
    }
    time = time or (_instant(created) if created and not is_part else None)
    call = {"account": account, "source": source, "time": time, **data}
    mark = _unique_id(given)
    if is_part and mark != str(given.get("id")):
        _refuse_beside_the_last(given.get("id"), data)
    return _event(given, mark, found, call, is_part=is_part)


def anthropic_usage(response: Any, *, account: str, source: str, time: datetime | None = None, **data: Any) -> Event:
    """Of a message of Anthropic, whose input does not include what was read from the cache or written to it.

    A message whose stream is not over (it has no `stop_reason`) is a partial report, which the whole one replaces.
    """
    given = _plain(response)
    usage = given["usage"]
    found = {name: usage.get(name) for name in ("service_tier", "speed", "inference_geo")} | anthropic_tokens(usage)
    if usage.get("fallback_credit"):
        # Redeemed, what it wrote to the cache is billed as what is read from it.
        found["fallback_credit"] = (usage["fallback_credit"].get("status") or {}).get("type")
    if given.get("stop_reason") == "refusal":
        # Some are not charged for.
        found |= {"stop_reason": "refusal", "refusal_category": (given.get("stop_details") or {}).get("category")}
    is_part = "stop_reason" in given and given["stop_reason"] is None
    call = {"account": account, "source": source, "time": time, **data}
    return _event(given, given["id"], found, call, is_part=is_part)


def gemini_usage(response: Any, *, account: str, source: str, time: datetime | None = None, **data: Any) -> Event:
    """Of a response of Gemini's `generateContent`, or of an interaction that is over, by its SDK or as JSON, from
    Google's API or Vertex.

    A chunk of a stream before the last (it has no `finish_reason`) is a partial report, which the last one replaces.
    Raises ValueError for one without the id that both have, unless you give its `status`, for an interaction that is
    not over, and for a line of a batch's output.
    """
    plain = _plain(response)
    given = snake(plain)
    if "usage_metadata" not in given and {"request", "response"} & given.keys():
        raise ValueError("a line of a batch's output is no response of Gemini's: send its `response`, if it has one")
    if given.get("status") and "usage_metadata" not in given:
        return _interaction(given, {"account": account, "source": source, "time": time, **data})
    usage = given.get("usage_metadata") or {}
    candidates = given.get("candidates") or ()
    searches = gemini_searches(candidates)
    found = {
        "service_tier": first(usage.get("traffic_type"), usage.get("service_tier"), _header(plain, GEMINI_TIER)),
        **gemini_tokens(usage, bills_tool_input=not searches),
        WEB_SEARCHES: searches or None,
    }
    call = {"account": account, "source": source, "time": time, **data}
    named = {**given, "model": given.get("model_version")}
    # Vertex begins streams with chunks that have neither an answer nor what it took.
    is_over = given.get("prompt_feedback") or usage.get("candidates_token_count") is not None
    mark, is_part = given.get("response_id"), is_open(candidates) if candidates else not is_over
    if is_part and not mark:
        _refuse_beside_the_last(mark, data)
    return _event(named, mark, found, call, is_part=is_part)


def _interaction(given: Mapping[str, Any], call: Mapping[str, Any]) -> Event:
    """Of Gemini's interactions, which have other names for the same counts, and an agent in place of a model."""
    mark, status, usage = given.get("id"), given["status"], given.get("usage") or {}
    if status in RUNNING:
        raise ValueError(f"{mark} has no usage yet: send the interaction that is over")
    searches = sum(
        tool.get("count") or 0
        for tool in usage.get("grounding_tool_count") or ()
        if tool.get("type") == "google_search"
    )
    found = {
        "status": STATUSES.get(status, "completed"),
        "service_tier": given.get("service_tier"),
        **gemini_tokens(metadata_of_interaction(usage), bills_tool_input=not searches),
        WEB_SEARCHES: searches or None,
    }
    named = {**given, "model": first(given.get("model"), given.get("agent"))}
    return _event(named, mark, found, call, is_part=False)


def litellm_callback(
    client: _Sender, *, source: str, account: Callable[[Mapping[str, Any]], str]
) -> Callable[[Mapping[str, Any], Any, datetime, datetime], None]:
    """A function for `litellm.success_callback`. `account` finds the account in LiteLLM's `kwargs` of the call.

    LiteLLM may call it for each chunk of a stream: only the whole response has usage. What LiteLLM's own cache answered
    took nothing: it has the first answer's id, or else is an event of 0 tokens with `cached`. Raises TypeError for an
    AsyncClient, whose `send` nobody would await.
    """
    if iscoroutinefunction(client.send):
        raise TypeError("LiteLLM's callback does not await: give it a Client, whose `send` is no coroutine")

    def on_success(kwargs: Mapping[str, Any], response: Any, _started: datetime, ended: datetime) -> None:
        whole = kwargs.get("complete_streaming_response") or kwargs.get("async_complete_streaming_response")
        if kwargs.get("stream") and whole is None:
            return
        given = _plain(whole or response)
        call: dict[str, Any] = {"account": account(kwargs), "source": source, "time": ended}
        call["model"] = given.get("model") or kwargs.get("model")
        if given.get("service_tier") is None and (tier := _hidden_traffic_type(whole or response)):
            call["service_tier"] = tier
        if kwargs.get("cache_hit") is True and not given.get("id"):
            client.send(usage_event(**call, input_tokens=0, output_tokens=0, cached=True))
            return
        client.send(openai_usage(given, **call))

    return on_success


def _event(
    given: Mapping[str, Any], mark: str | None, found: Mapping[str, Any], call: Mapping[str, Any], *, is_part: bool
) -> Event:
    """`found` of the response `given`, and what its sender says of the `call`, which counts where both say it.

    `mark`: the response's id, where its sender gives it none. A part of a stream is an event of its own, of the request
    that all parts are of. Where nothing better comes, the stream was cut off there: it ranks below a whole answer, and
    below what is said to be cut off.
    """
    mark, fields = first(call.get("response_id"), mark), dict(found)
    names = {"response_id": mark, "model": call.get("model") or given["model"]}
    if is_part and mark is not None:
        fields |= {"status": "cancelled", "usage_source": "partial", "request_id": mark}
        names["response_id"] = _with_digest(mark, given)
    return usage_event(**{**fields, **call, **names})


def _usage(given: Mapping[str, Any], billed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What it counts. The last chunk of Groq has it in `x_groq`, and that of Moonshot in its only choice; Cohere's
    own API and LiteLLM's reranking have it in what is `billed`.
    """
    of_choices = [answer["usage"] for answer in given.get("choices") or () if answer.get("usage")]
    of_choice = of_choices[0] if len(of_choices) == 1 else None
    counts = _billed_counts(billed)
    usage = given.get("usage") or (given.get("x_groq") or {}).get("usage") or of_choice or counts
    return counts if "billed_units" in usage else usage


def _hidden_traffic_type(response: Any) -> str | None:
    """Vertex's, which LiteLLM keeps beside its response."""
    hidden = getattr(response, "_hidden_params", None) or {}
    found: str | None = (hidden.get("provider_specific_fields") or {}).get("traffic_type")
    return found


def _billed_counts(billed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of what Cohere bills, which has the images of embeddings beside other input, at a price of their own."""
    counts = {name: billed[name] for name in BILLED if billed.get(name) is not None}
    images = billed.get("image_tokens")
    if not images:
        return counts
    text = first(billed.get("text_tokens"), billed.get("input_tokens"), 0)
    return {**counts, "input_tokens": text + images, "input_tokens_details": {"image_tokens": images}}


def _traffic_type(usage: Mapping[str, Any]) -> str | None:
    """What Vertex's API for OpenAI's SDK has of its own: whether it was on demand, and at which priority."""
    found: str | None = ((usage.get("extra_properties") or {}).get("google") or {}).get("traffic_type")
    return found


def _has_failed(given: Mapping[str, Any]) -> bool:
    """Whether it is an answer, without an HTTP error, that says it failed."""
    answers = given.get("choices") or ()
    return bool(given.get("error") or (answers and all(answer.get("finish_reason") == FAILED for answer in answers)))


def _header(response: Mapping[str, Any], name: str) -> str | None:
    """Of the HTTP response that Google's SDK has with its own."""
    headers = (response.get("sdk_http_response") or {}).get("headers") or {}
    return next((value for header, value in headers.items() if header.lower() == name), None)


def _number(value: Any) -> Any:
    """A whole number without a point, as a count with one is refused; a Decimal as JSON has it, to its last digit.

    Raises ValueError for one that no number of JSON's readers is.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if not isinstance(value, Decimal):
        return value
    whole = value.is_finite() and value == value.to_integral_value()
    if not value.is_finite() or (not whole and Decimal(repr(float(value))) != value):
        raise ValueError(f"{value} has more digits than a number of JSON keeps: round it, or send a smaller unit")
    return int(value) if whole else float(value)


def _instant(created: float) -> datetime:
    """Of a Unix time in seconds, or in milliseconds, as some gateways write it."""
    return datetime.fromtimestamp(created if created < _FIRST_MILLISECONDS else created / 1_000, UTC)


def _refuse_beside_the_last(mark: str | None, said: Mapping[str, Any]) -> None:
    """Raises ValueError of a part that would be billed beside the last one, unless its sender says what it is."""
    if not {"status", "usage_source", "response_id"} & said.keys():
        raise ValueError(
            f"{mark!r} is no id that all parts of this stream have: send the last chunk alone, or say of one that the "
            'stream ended there (status="cancelled"), or give all of them one response_id'
        )


def _unique_id(response: Mapping[str, Any]) -> str | None:
    """The response's id, by which no other response is called; None where it has none."""
    given = str(first(response.get("id"), ""))
    return _with_digest(given, response) if _NO_NAME.fullmatch(given) else given or None


def _with_digest(mark: str, response: Mapping[str, Any]) -> str:
    whole = json.dumps(response, sort_keys=True, default=str).encode()
    return f"{mark}-{sha256(whole).hexdigest()[:24]}"


def _plain(response: Any) -> Mapping[str, Any]:
    """A response as its JSON: it is that already, or an object of pydantic's."""
    found: Mapping[str, Any] = response if isinstance(response, Mapping) else response.model_dump()
    return found
