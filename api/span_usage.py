"""Spans of generative AI → events of usage.

The names are those of OpenTelemetry's conventions, today's and those of the releases before, and the ones that
instrumentations had before there were conventions: https://github.com/open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from api.span_record import Attribute, Attributes, SpanRecord, TooLarge
from metering.instants import EPOCH, rfc3339

TYPE = "ai.inference.usage.v1"
MAX_USAGE_SPANS = 10_000
"""Of one request: those that report calls of a model."""
OPERATION, SERVICE = "gen_ai.operation.name", "service.name"
USAGE_SOURCE = "weir.usage_source"
"""Whose count it is, which no convention says: `estimated` has any other report of the same response bill instead."""
OPERATIONS = frozenset(("chat", "text_completion", "generate_content", "embeddings", "embedding"))
"""Calls of a model; the last is how Spring AI writes the one before."""
EMBEDDINGS = frozenset(("embeddings", "embedding"))
"""They have no output, and no instrumentation reports that there is none: null would be a report that is missing."""
SUMMARIES = frozenset(
    ("create_agent", "invoke_agent", "invoke_workflow", "execute_tool", "fetch_response", "retrieval")
)
"""What adds up calls that have spans of their own, reads an answer again, or calls no model."""
PROVIDER, METHOD, OF_MISTRALS_SDK = "gen_ai.provider.name", "http.request.method", "agent.trace.public"
"""The last marks spans of Mistral's SDK. A call of an agent's is `invoke_agent` in them, is no sum of other spans, and
has the tokens; messages of the answer are spans of their own within it, without tokens. The call is a request of HTTP.
"""
TEXTS = {
    "model": ("gen_ai.response.model", "gen_ai.request.model"),
    "request_id": ("gen_ai.response.id",),
    "user_id": ("user.id",),
    "operation": (OPERATION,),
    "usage_source": (USAGE_SOURCE,),
}
TIER = (
    *("openai.response.service_tier", "gen_ai.openai.response.service_tier", "gen_ai.response.service_tier"),
    "anthropic.response.service_tier",
)
"""By which tier it was answered, which decides its price: no shipped contract reads it, and one that declares it does.
The first is today's name, the third is no convention's, and the last that of Anthropic's own spans. The tier of the
request may not be that of the answer.
"""
_USAGE = "gen_ai.usage."
QUANTITIES = {
    column: tuple(_USAGE + name for name in names)
    for column, names in {
        "input_tokens": ("input_tokens", "prompt_tokens"),
        "output_tokens": ("output_tokens", "completion_tokens"),
        "cached_tokens": (
            *("cache_read.input_tokens", "cache_read_input_tokens", "details.cache_read_tokens"),
            *("cache_read_tokens", "cached_input_tokens", "input_tokens.cached", "cached_tokens"),
            *("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_prompt_text_tokens"),
        ),
        "cache_write_tokens": (
            *("cache_write.input_tokens", "cache_creation.input_tokens"),
            *("cache_write_input_tokens", "cache_creation_input_tokens", "details.cache_write_tokens"),
            *("cache_write_tokens", "input_tokens.cache_write"),
        ),
        "audio_input_tokens": (
            *("audio.input_tokens", "details.input_audio_tokens"),
            *("input_audio_tokens", "audio_input_tokens"),
        ),
        "image_input_tokens": ("image.input_tokens",),
        "reasoning_tokens": (
            *("reasoning.output_tokens", "reasoning_tokens", "output_tokens.reasoning"),
            *("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens"),
        ),
        "audio_output_tokens": (
            *("audio.output_tokens", "details.output_audio_tokens"),
            *("output_audio_tokens", "audio_output_tokens"),
            *("completion_token_details.audio_tokens", "output_token_details.audio_tokens"),
        ),
        "image_output_tokens": (
            *("image.output_tokens", "output_image_tokens"),
            *("completion_token_details.image_tokens", "output_token_details.image_tokens"),
        ),
    }.items()
}
"""Column → the attributes that report it, the current name first."""
CACHED = {
    "audio_input_tokens": (
        *(_USAGE + "audio.cache_read.input_tokens", _USAGE + "details.cache_audio_read_tokens"),
        _USAGE + "cache_audio_read_tokens",
    ),
    "image_input_tokens": (_USAGE + "image.cache_read.input_tokens",),
}
"""What of a column is counted as cached, too: parts of one whole share no token."""
UNCACHED = {
    f"{modality}_input_tokens": tuple(
        f"{_USAGE}{details}_token_details.{modality}_tokens" for details in ("prompt", "input")
    )
    for modality in ("audio", "image")
}
"""Parts of the input by Bifrost. What of them the cache gave it does not say: they are read where that is nothing."""
KEPT_LONGER = (
    "anthropic.usage.cache_creation.ephemeral_1h_input_tokens",
    *(f"{_USAGE}{details}_token_details.cached_write_tokens_1h" for details in ("prompt", "input")),
)
"""What of the cache writes costs more, in the spans of Anthropic's SDK and API, and Bifrost's."""
COMPACTION = "anthropic.usage.compaction."
"""What Anthropic took to compact the conversation first, `input_tokens` and `output_tokens`: the usage leaves it out,
and it is billed. What of its input the cache gave, which costs a tenth, the spans do not say.
"""
THOUGHTS = _USAGE + "experimental.reasoning_tokens"
"""What Google's ADK before 2.3 has beside the output tokens, which are Gemini's candidates alone."""
OF_XAI, TOTAL = _USAGE + "cached_prompt_text_tokens", _USAGE + "total_tokens"
"""The first is in the spans of xAI's SDK alone, whose reasoning is beside its output, as the total says."""
RUN_TYPE = "langsmith.span.kind"
NO_CALLS = frozenset(("chain", "tool", "retriever", "prompt", "parser"))
"""LangSmith calls a prompt's template `chat`, too, and a search in documents `embeddings`: its own word tells, which
its guide writes in capitals.
"""
DETAILS = {
    "cached_tokens": ("input_token_details", "cache_read"),
    # Where Anthropic says for how long, LangChain has 0 as `cache_creation`.
    "cache_write_tokens": (
        *("input_token_details", "cache_creation"),
        *("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"),
    ),
    "cache_write_1h_tokens": ("input_token_details", "ephemeral_1h_input_tokens"),
    "audio_input_tokens": ("input_token_details", "audio"),
    "reasoning_tokens": ("output_token_details", "reasoning"),
    "audio_output_tokens": ("output_token_details", "audio"),
}
"""Column → LangSmith's attribute, a text of JSON or of Python, and the member of it that reports the column, or, if
that is more, those that report its parts. A member's name begins with OpenAI's tier where that is priority or flex.
"""
ERROR_TYPE = "error.type"
CACHE_HIT = "litellm.cache_hit"
"""Whether LiteLLM's own cache answered. Such a span has the tokens of the first answer, and its id if it has one."""
NO_NAME = re.compile(r"(?:[A-Za-z]+[-_.])*[A-Za-z]?[0-9]{1,13}|[A-Za-z]{1,12}|(?:[a-z]{1,12}[-.]){2,}[a-z]{1,12}")
"""A response's id that others soon have, too: Ollama and servers like it number theirs at random below 999, and others
by the second or the millisecond. KoboldCpp calls all of them `chatcmpl-A1` or `koboldcpp`, and FastFlowLM
`fastflowlm-chat-completion`."""
_NAMES = (
    *(name for names in QUANTITIES.values() for name in names),
    *("llm.token_count.prompt", "llm.token_count.completion", "llm.token_count.total"),
)
"""What reports tokens: names that are read, and those of OpenInference, whose spans say no operation."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class UsageSpan:
    """A span that reports a call of a model, and the event that it is.

    The same span has the same bytes, so one that is exported twice is a repeat.
    """

    id: str
    """`trace id:span id`; empty where it has none."""
    document: bytes = b""
    has_account: bool = True
    problem: str | None = None
    """Why it cannot become an event."""


@dataclass
class SpanUsage:
    """What the spans of a request report."""

    spans: list[UsageSpan] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    """Spans with tokens of which nobody knows whether they call a model, by their `gen_ai.operation.name`."""


def usage_of(spans: Iterable[SpanRecord], account_attribute: str) -> SpanUsage:
    """`account_attribute` names the account, on the span or on its resource. Raises TooLarge."""
    found = SpanUsage()
    for span in spans:
        operation = span.attributes.get(OPERATION)
        if span.problem is not None:
            found.spans.append(UsageSpan(span.id, problem=span.problem))
        elif str(span.attributes.get(RUN_TYPE)).lower() in NO_CALLS or _is_mistrals_message(span.attributes):
            continue
        elif operation in OPERATIONS or _is_mistrals_agent(span.attributes):
            found.spans.append(_usage_span(span, account_attribute))
        elif operation not in SUMMARIES and any(name in span.attributes for name in _NAMES):
            name = str(operation or "")[:100]
            if name in found.unknown or len(found.unknown) < MAX_USAGE_SPANS:
                found.unknown[name] = found.unknown.get(name, 0) + 1
        if len(found.spans) > MAX_USAGE_SPANS:
            raise TooLarge(f"a request has at most {MAX_USAGE_SPANS} spans that report usage")
    return found


def _is_mistrals_agent(attributes: Attributes) -> bool:
    of_sdk = attributes.get(PROVIDER) == "mistral_ai" and OF_MISTRALS_SDK in attributes
    return of_sdk and attributes.get(OPERATION) == "invoke_agent" and METHOD in attributes


def _is_mistrals_message(attributes: Attributes) -> bool:
    of_sdk = attributes.get(PROVIDER) == "mistral_ai" and OF_MISTRALS_SDK in attributes
    return of_sdk and METHOD not in attributes and not any(name in attributes for name in _NAMES)


def _usage_span(span: SpanRecord, account_attribute: str) -> UsageSpan:
    event = _event(span, account_attribute)
    try:
        document = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return UsageSpan(span.id, problem="a text in it is no Unicode")
    return UsageSpan(span.id, document, "subject" in event)


def _event(span: SpanRecord, account_attribute: str) -> dict[str, Any]:
    """The CloudEvent. What the span lacks is absent, and what cannot be read as it should be is as it came."""
    attributes = span.attributes
    account = _text(attributes, (account_attribute,)) or _text(span.resource, (account_attribute,))
    texts = {column: _text(attributes, names) for column, names in TEXTS.items()}
    quantities = {column: _quantity(attributes, names) for column, names in QUANTITIES.items()}
    quantities["cache_write_1h_tokens"] = _quantity(attributes, KEPT_LONGER)
    for column, (details, member, *parts) in DETAILS.items():
        if quantities[column] is None:
            quantities[column] = _detail(attributes.get(_USAGE + details), member, *parts)
    for column, names in CACHED.items():
        whole, part = quantities[column], _quantity(attributes, names)
        if type(whole) is int and type(part) is int:
            quantities[column] = whole - part
    for column, names in UNCACHED.items():
        if quantities[column] is None and not quantities["cached_tokens"] and not quantities["cache_write_tokens"]:
            quantities[column] = _quantity(attributes, names)
    thoughts, written = _quantity(attributes, (THOUGHTS,)), quantities["output_tokens"]
    if type(thoughts) is int and quantities["reasoning_tokens"] is None and isinstance(written, int | None):
        quantities |= {"reasoning_tokens": thoughts, "output_tokens": (written or 0) + thoughts}
    if OF_XAI in attributes and _has_reasoning_beside(quantities, _quantity(attributes, (TOTAL,))):
        # As output alone: a source whose conventions have it beside would pay for it twice.
        quantities |= {"output_tokens": _whole(quantities, "output_tokens", "reasoning_tokens")}
        quantities["reasoning_tokens"] = None
    compacted, written = _quantity(attributes, (COMPACTION + "output_tokens",)), quantities["output_tokens"]
    if type(compacted) is int and type(written) is int:
        quantities["output_tokens"] = written + compacted
    quantities["compaction_input_tokens"] = _quantity(attributes, (COMPACTION + "input_tokens",))
    if quantities["output_tokens"] is None and attributes.get(OPERATION) in EMBEDDINGS:
        quantities["output_tokens"] = 0
    if attributes.get(CACHE_HIT) is True:
        # It took nothing. As a report of the first answer's request it would be the later one, and bill in its place.
        texts["request_id"] = None
        quantities = {"input_tokens": 0, "output_tokens": 0, "cached": True}
    status = "error" if attributes.get(ERROR_TYPE, "") != "" or span.is_error else "completed"
    data = {**texts, "request_id": _request_id(texts["request_id"], span.id or None), "status": status, **quantities}
    tier = _first(attributes, TIER)
    data["service_tier"] = tier if isinstance(tier, str) else None
    event = {
        "specversion": "1.0",
        "type": TYPE,
        "source": _text(span.resource, (SERVICE,)),
        "id": span.id or None,
        "subject": account,
        "time": _instant(span.ended_nanos),
        "data": {column: value for column, value in data.items() if value is not None},
    }
    return {member: value for member, value in event.items() if value is not None}


def _whole(quantities: Mapping[str, Attribute | None], *columns: str) -> int:
    """Their sum; what is no count is none of it."""
    values = (quantities[column] for column in columns)
    return sum(value for value in values if isinstance(value, int))


def _has_reasoning_beside(quantities: Mapping[str, Attribute | None], total: Attribute | None) -> bool:
    within = _whole(quantities, "input_tokens", "output_tokens")
    return bool(quantities["reasoning_tokens"]) and total == within + _whole(quantities, "reasoning_tokens")


def _instant(nanos: int) -> str | None:
    """Nanoseconds since 1970 as a time, to the microsecond; None for 0, and for what no calendar has."""
    try:
        return rfc3339(EPOCH + timedelta(microseconds=nanos // 1_000)) if nanos else None
    except OverflowError:
        return None


def _request_id(response_id: Attribute | None, span: str | None) -> Attribute | None:
    """The response's id, which all spans of one call share; the span itself where that names no single response."""
    is_name = response_id is not None and not NO_NAME.fullmatch(str(response_id))
    return response_id if is_name else span


def _text(attributes: Attributes, names: tuple[str, ...]) -> Attribute | None:
    """The first that is there and not empty; a whole number as its text."""
    found = _first(attributes, names)
    return str(found) if type(found) is int else found


def _quantity(attributes: Attributes, names: tuple[str, ...]) -> Attribute | None:
    """The first that is there and not empty; a whole number that came as a text or with a point is one."""
    found = _first(attributes, names)
    if isinstance(found, str) and _INTEGER.fullmatch(found):
        return int(found)
    return int(found) if isinstance(found, float) and found.is_integer() else found


def _detail(details: Attribute | None, whole: str, *parts: str) -> int | None:
    reported = [found for name in parts if (found := _member(details, name)) is not None]
    totals = (_member(details, whole), sum(reported) if reported else None)
    return max((total for total in totals if total is not None), default=None)


def _member(details: Attribute | None, name: str) -> int | None:
    if not isinstance(details, str):
        return None
    found = re.search(rf"""['"](?:priority_|flex_)?{name}['"]: ?([0-9]{{1,18}})""", details)
    return None if found is None else int(found[1])


def _first(attributes: Attributes, names: tuple[str, ...]) -> Attribute | None:
    return next((attributes[name] for name in names if attributes.get(name, "") != ""), None)
