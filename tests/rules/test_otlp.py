"""Spans of generative AI → events of usage: what OpenTelemetry's conventions mean, and what protobuf and JSON carry."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtobufSpan

from api.otlp import failure, spans_in, success
from api.otlp_json import JSON, MAX_JSON_CONTAINERS
from api.otlp_protobuf import MAX_SPAN_BYTES, PROTOBUF
from api.span_record import MAX_SPANS, NotOtlp, TooLarge
from api.span_usage import MAX_USAGE_SPANS, TIER, TYPE, SpanUsage, UsageSpan, usage_of
from metering.instants import EPOCH
from metering.joining import Side
from metering.ranking import Received, ranked

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"
Attribute = str | int | float | bool
CALL: dict[str, Attribute] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.response.model": "gpt-4o-2024-08-06",
    "gen_ai.response.id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
    "gen_ai.usage.input_tokens": 1200,
    "gen_ai.usage.output_tokens": 350,
    "weir.account": "acme",
}


def attributes(given: dict[str, Attribute]) -> list[KeyValue]:
    return [KeyValue(key=name, value=any_value(value)) for name, value in given.items()]


def any_value(value: Attribute) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case str():
            return AnyValue(string_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)


def span(given: dict[str, Attribute], **changes: Any) -> ProtobufSpan:
    usual: dict[str, Any] = {
        "trace_id": bytes.fromhex(TRACE),
        "span_id": bytes.fromhex(SPAN),
        "end_time_unix_nano": 1_764_093_600_123_456_789,
    }
    return ProtobufSpan(**usual | changes, attributes=attributes(given))


def request(*spans: ProtobufSpan, resource: dict[str, Attribute] | None = None) -> ExportTraceServiceRequest:
    found = ExportTraceServiceRequest()
    of_resource = found.resource_spans.add()
    of_resource.resource.attributes.extend(attributes({"service.name": "gateway"} if resource is None else resource))
    of_resource.scope_spans.add().spans.extend(spans)
    return found


def as_json(given: ExportTraceServiceRequest) -> bytes:
    """OTLP's own JSON: ids are hexadecimal, names in camel case, enumerations numbers."""
    content = json_format.MessageToDict(given, use_integers_for_enums=True)
    for of_resource in content.get("resourceSpans", []):
        for of_scope in of_resource["scopeSpans"]:
            for written, original in zip(of_scope["spans"], given.resource_spans[0].scope_spans[0].spans, strict=True):
                written |= {"traceId": original.trace_id.hex(), "spanId": original.span_id.hex()}
    return json.dumps(content).encode()


def usage(media_type: str, body: bytes, account: str = "weir.account") -> SpanUsage:
    return usage_of(spans_in(media_type, body), account)


def read(given: ExportTraceServiceRequest, account: str = "weir.account") -> list[UsageSpan]:
    """The usage in a request, which is the same as protobuf and as JSON."""
    found = usage(PROTOBUF, given.SerializeToString(), account)
    assert usage(JSON, as_json(given), account) == found
    return found.spans


def event_of(span: UsageSpan) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(span.document)
    return event


def data(given: dict[str, Attribute], **changes: Any) -> dict[str, Any]:
    (found,) = read(request(span(given, **changes)))
    of_event: dict[str, Any] = event_of(found)["data"]
    return of_event


def test_a_call_of_a_model_is_one_event_that_its_span_identifies() -> None:
    (found,) = read(request(span(CALL)))
    assert found.id == f"{TRACE}:{SPAN}"
    assert json.loads(found.document) == {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "gateway",
        "id": f"{TRACE}:{SPAN}",
        "subject": "acme",
        "time": "2025-11-25T18:00:00.123456Z",
        "data": {
            "request_id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
            "model": "gpt-4o-2024-08-06",
            "operation": "chat",
            "status": "completed",
            "input_tokens": 1200,
            "output_tokens": 350,
        },
    }


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool", "create_agent", "fetch_response", None])
def test_a_span_that_adds_up_others_or_calls_no_model_is_no_usage(operation: str | None) -> None:
    others = {name: value for name, value in CALL.items() if name != "gen_ai.operation.name"}
    named: dict[str, Attribute] = {} if operation is None else {"gen_ai.operation.name": operation}
    assert read(request(span(others | named))) == []


def test_a_call_of_an_agent_is_one_in_the_spans_of_mistrals_sdk() -> None:
    """Its `otel.py` (3.7) calls agents' completions and conversations `invoke_agent`, in the span of the request, which
    alone has the tokens; its tests have these attributes. They were on no bill, and the answer was that all was well.
    """
    of_sdk: dict[str, Attribute] = {"gen_ai.provider.name": "mistral_ai", "agent.trace.public": ""}
    agent = CALL | of_sdk | {"gen_ai.operation.name": "invoke_agent", "http.request.method": "POST"}
    found = data(agent)
    assert (found["request_id"], found["input_tokens"], found["output_tokens"]) == (
        CALL["gen_ai.response.id"],
        1200,
        350,
    )
    # A conversation has no response id; its messages are spans within it, with the model, an id, and no tokens.
    conversation = {name: value for name, value in agent.items() if name != "gen_ai.response.id"}
    without = {name: value for name, value in CALL.items() if not name.startswith("gen_ai.usage.")}
    message = without | of_sdk | {"gen_ai.response.id": "msg_01", "gen_ai.operation.name": "chat"}
    (call,) = read(request(span(conversation), span(message, span_id=b"message_")))
    assert event_of(call)["data"]["request_id"] == f"{TRACE}:{SPAN}"
    # Its other calls, and the agents of a framework that sums up calls, are what they are elsewhere.
    assert data(CALL | of_sdk | {"http.request.method": "POST"})["input_tokens"] == 1200
    assert data(CALL | of_sdk)["input_tokens"] == 1200
    frameworks = CALL | {"gen_ai.provider.name": "mistral_ai", "gen_ai.operation.name": "invoke_agent"}
    assert read(request(span(frameworks), span(frameworks | {"http.request.method": "POST"}))) == []


def test_names_of_earlier_releases_are_read_and_the_current_ones_come_first() -> None:
    earlier: dict[str, Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.usage.cache_creation.input_tokens": 3,
    }
    expected = {"input_tokens": 7, "output_tokens": 2, "cache_write_tokens": 3, "model": "m"}
    assert data(earlier).items() >= expected.items()
    both = data(earlier | {"gen_ai.usage.input_tokens": 8, "gen_ai.usage.cache_write.input_tokens": 4})
    assert both.items() >= {"input_tokens": 8, "cache_write_tokens": 4}.items()


@pytest.mark.parametrize("operation", ["embeddings", "embedding"])
def test_embeddings_have_no_output_which_is_no_missing_report(operation: str) -> None:
    given: dict[str, Attribute] = {"gen_ai.operation.name": operation, "gen_ai.request.model": "e"}
    given["gen_ai.usage.input_tokens"] = 8
    assert data(given).items() >= {"input_tokens": 8, "output_tokens": 0}.items()
    assert data(given | {"gen_ai.usage.output_tokens": 3})["output_tokens"] == 3
    assert "output_tokens" not in data(given | {"gen_ai.operation.name": "chat"})


def test_a_cached_token_of_audio_is_counted_as_cached_alone() -> None:
    found = data(
        CALL
        | {
            "gen_ai.usage.cache_read.input_tokens": 700,
            "gen_ai.usage.audio.input_tokens": 500,
            "gen_ai.usage.audio.cache_read.input_tokens": 200,
            "gen_ai.usage.image.input_tokens": 10,
        }
    )
    assert found.items() >= {"cached_tokens": 700, "audio_input_tokens": 300, "image_input_tokens": 10}.items()


def test_thoughts_of_googles_adk_are_output_where_it_counts_them_beside() -> None:
    """Before 2.3: its own tests have 50 candidates and 10 thoughts as 50 output tokens and 10 beside."""
    beside = "gen_ai.usage.experimental.reasoning_tokens"
    without = {name: value for name, value in CALL.items() if name != "gen_ai.usage.output_tokens"}
    adk = without | {"gen_ai.operation.name": "generate_content", beside: 46}
    found = data(adk | {"gen_ai.usage.output_tokens": 6})
    assert found.items() >= {"output_tokens": 52, "reasoning_tokens": 46}.items()
    # All of the answer was thoughts.
    assert data(adk).items() >= {"output_tokens": 46, "reasoning_tokens": 46}.items()
    # What has the current name is within the output.
    today = data(adk | {"gen_ai.usage.output_tokens": 52, "gen_ai.usage.reasoning.output_tokens": 46})
    assert today.items() >= {"output_tokens": 52, "reasoning_tokens": 46}.items()


def test_parts_are_read_under_the_names_of_openrouter_sentry_rig_mastra_and_pydantics_gateway() -> None:
    """As their code has them in spans of operation `chat`; only their names of the sums are OpenTelemetry's."""
    found = data(
        CALL
        | {
            "gen_ai.usage.input_tokens.cached": 700,
            "gen_ai.usage.input_tokens.cache_write": 50,
            "gen_ai.usage.output_tokens.reasoning": 40,
        }
    )
    assert found.items() >= {"cached_tokens": 700, "cache_write_tokens": 50, "reasoning_tokens": 40}.items()
    # rig, and Mastra before it had the current name.
    for name in ("gen_ai.usage.cached_tokens", "gen_ai.usage.cached_input_tokens"):
        assert data(CALL | {name: 700})["cached_tokens"] == 700
    gateway = data(
        CALL
        | {
            "gen_ai.usage.cache_read_tokens": 700,
            "gen_ai.usage.cache_write_tokens": 50,
            "gen_ai.usage.input_audio_tokens": 300,
            "gen_ai.usage.cache_audio_read_tokens": 100,
            "gen_ai.usage.output_audio_tokens": 20,
        }
    )
    expected = {"cached_tokens": 700, "cache_write_tokens": 50, "audio_input_tokens": 200, "audio_output_tokens": 20}
    assert gateway.items() >= expected.items()
    nested = CALL | {
        "gen_ai.usage.prompt_tokens_details.cached_tokens": 700,
        "gen_ai.usage.completion_tokens_details.reasoning_tokens": 40,
    }
    assert data(nested).items() >= {"cached_tokens": 700, "reasoning_tokens": 40}.items()


def test_reasoning_of_xais_sdk_is_output_where_its_total_has_it_beside() -> None:
    """A span of grok-3-mini as it is shown for its SDK. It was rejected: more reasoning than output."""
    grok: dict[str, Attribute] = {
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 151,
        "gen_ai.usage.reasoning_tokens": 418,
        "gen_ai.usage.total_tokens": 599,
        "gen_ai.usage.cached_prompt_text_tokens": 11,
    }
    found = data(CALL | grok)
    assert found.items() >= {"input_tokens": 30, "cached_tokens": 11, "output_tokens": 569}.items()
    assert "reasoning_tokens" not in found
    # Within the output, by the total, or of another sender, whose total nobody knows.
    within = data(CALL | grok | {"gen_ai.usage.output_tokens": 569})
    assert within.items() >= {"output_tokens": 569, "reasoning_tokens": 418}.items()
    other = CALL | {name: value for name, value in grok.items() if "cached" not in name}
    assert data(other).items() >= {"output_tokens": 151, "reasoning_tokens": 418}.items()
    none = data(CALL | grok | {"gen_ai.usage.reasoning_tokens": 0, "gen_ai.usage.total_tokens": 181})
    assert none.items() >= {"output_tokens": 151, "reasoning_tokens": 0}.items()


@pytest.mark.parametrize(
    ("kind", "operation"),
    [("prompt", "chat"), ("Retriever", "embeddings"), ("CHAIN", "chain"), ("tool", "execute_tool")],
)
def test_langsmiths_spans_of_what_calls_no_model_are_no_requests(kind: str, operation: str) -> None:
    """`prompt | model` is one call, of which LangSmith's exporter calls both parts `chat`."""
    template: dict[str, Attribute] = {"langsmith.span.kind": kind, "gen_ai.operation.name": operation}
    of_chain: dict[str, Attribute] = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 3}
    for written in (template, template | of_chain):
        found = usage(PROTOBUF, request(span(written | {"weir.account": "acme"})).SerializeToString())
        assert (found.spans, found.unknown) == ([], {})


@pytest.mark.parametrize("kind", ["llm", "LLM", "embedding", "Embedding", "generation", ""])
def test_a_call_is_one_however_langsmiths_word_for_it_is_written(kind: str) -> None:
    """LangSmith's guide sets `LLM`; what is no word of LangSmith's says nothing about the span."""
    assert data(CALL | {"langsmith.span.kind": kind})["input_tokens"] == 1200


def test_parts_that_langsmith_has_as_a_text_are_read() -> None:
    """Python's exporter writes `str(details)`, that of JavaScript JSON."""
    python: dict[str, Attribute] = {
        "gen_ai.usage.input_token_details": "{'audio': 10, 'cache_read': 700}",
        "gen_ai.usage.output_token_details": "{'audio': 5, 'reasoning': 40}",
    }
    expected = {"cached_tokens": 700, "audio_input_tokens": 10, "reasoning_tokens": 40, "audio_output_tokens": 5}
    assert data(CALL | python).items() >= expected.items()
    script: dict[str, Attribute] = {
        "gen_ai.usage.input_token_details": '{"flex_cache_read":700,"flex":500,"cache_creation":20}'
    }
    assert data(CALL | script).items() >= {"cached_tokens": 700, "cache_write_tokens": 20}.items()
    for total in ("0", "70", "None"):  # LangChain's own release writes 0, others the sum or nothing.
        of_anthropic = (
            f"{{'cache_creation': {total}, 'ephemeral_5m_input_tokens': 50, 'ephemeral_1h_input_tokens': 20}}"
        )
        found = data(CALL | {"gen_ai.usage.input_token_details": of_anthropic})
        assert (found["cache_write_tokens"], found["cache_write_1h_tokens"]) == (70, 20)
    nothing_written = "{'cache_creation': 0, 'ephemeral_5m_input_tokens': 0}"
    assert data(CALL | {"gen_ai.usage.input_token_details": nothing_written})["cache_write_tokens"] == 0
    # A name of its own comes first.
    assert data(CALL | python | {"gen_ai.usage.cache_read.input_tokens": 600})["cached_tokens"] == 600
    for nothing in ("", "{}", "{'cache_read': None}", "{'cache_read': -1}"):
        assert "cached_tokens" not in data(CALL | {"gen_ai.usage.input_token_details": nothing})


def test_audio_of_pydantic_ai_is_audio_and_what_of_it_was_cached_is_cached() -> None:
    """As its releases name it: `RequestUsage.opentelemetry_attributes`."""
    found = data(
        CALL
        | {
            "gen_ai.usage.details.cache_read_tokens": 700,
            "gen_ai.usage.details.cache_write_tokens": 50,
            "gen_ai.usage.details.input_audio_tokens": 500,
            "gen_ai.usage.details.cache_audio_read_tokens": 200,
            "gen_ai.usage.details.output_audio_tokens": 40,
        }
    )
    expected = {"cached_tokens": 700, "cache_write_tokens": 50, "audio_input_tokens": 300, "audio_output_tokens": 40}
    assert found.items() >= expected.items()


@pytest.mark.parametrize(
    ("more", "changes"),
    [({"error.type": "timeout"}, {}), ({}, {"status": {"code": 2}})],
    ids=["error.type", "the span's status"],
)
def test_a_call_that_failed_is_an_error(more: dict[str, Attribute], changes: dict[str, Any]) -> None:
    assert data(CALL | more, **changes)["status"] == "error"


@pytest.mark.parametrize("name", TIER)
def test_the_tier_that_answered_goes_with_the_event(name: str) -> None:
    """OpenAI's flex costs half as much, and priority twice: both were billed at the price of the standard."""
    assert data(CALL | {name: "flex"})["service_tier"] == "flex"
    assert data(CALL | {name: "flex", "openai.request.service_tier": "auto"})["service_tier"] == "flex"
    # What was asked for may not be what was given, and what is no text is no tier.
    nones: list[dict[str, Attribute]] = [{"openai.request.service_tier": "flex"}, {name: ""}, {name: 1}, {name: True}]
    for none in nones:
        assert "service_tier" not in data(CALL | none)


def test_what_anthropics_own_spans_say_of_its_prices_goes_with_the_event() -> None:
    """As its SDK writes them (2.14: `_tracing.py`, `lib/_tracing/_response.py`): the input has the cache within, and
    the usage leaves out the tokens of compactions, which Anthropic bills. Its page on compaction has this example.
    """
    found = data(
        CALL
        | {
            "gen_ai.usage.input_tokens": 23_000,
            "gen_ai.usage.output_tokens": 1_000,
            "gen_ai.usage.cache_read.input_tokens": 20_000,
            "gen_ai.usage.cache_write.input_tokens": 2_000,
            "anthropic.usage.cache_creation.ephemeral_5m_input_tokens": 500,
            "anthropic.usage.cache_creation.ephemeral_1h_input_tokens": 1_500,
            "anthropic.usage.compaction.input_tokens": 180_000,
            "anthropic.usage.compaction.output_tokens": 3_500,
            "anthropic.response.service_tier": "priority",
        }
    )
    counted = {"input_tokens": 23_000, "cached_tokens": 20_000, "cache_write_tokens": 2_000, "output_tokens": 4_500}
    # The cache may have given most of what a compaction read, so it is no other input.
    beside = {"cache_write_1h_tokens": 1_500, "compaction_input_tokens": 180_000, "service_tier": "priority"}
    assert found.items() >= {**counted, **beside}.items()
    assert not {"cache_write_1h_tokens", "compaction_input_tokens"} & data(CALL).keys()
    # A stream that broke off has no output, and no compaction has one for it.
    broken: dict[str, Attribute] = {"gen_ai.usage.input_tokens": 23_000, "gen_ai.operation.name": "chat"}
    assert "output_tokens" not in data(broken | {"anthropic.usage.compaction.output_tokens": 3_500})


@pytest.mark.parametrize("of", [("prompt", "completion"), ("input", "output")])
def test_audio_and_images_in_spans_of_bifrost_are_what_they_are(of: tuple[str, str]) -> None:
    """Its `core/schemas/trace.go` has names of its own for them, by the API; agentgateway's `log.rs` for images. Audio
    costs OpenAI 16 times as much as text, and an image that Gemini made 10 times: they were billed as text.
    """
    given, made = (f"gen_ai.usage.{side}_token_details." for side in of)
    parts: dict[str, Attribute] = {f"{made}audio_tokens": 40, f"{made}image_tokens": 30}
    parts |= {f"{given}audio_tokens": 300, f"{given}image_tokens": 200, f"{given}text_tokens": 700}
    expected = {"audio_input_tokens": 300, "image_input_tokens": 200}
    assert data(CALL | parts).items() >= {**expected, "audio_output_tokens": 40, "image_output_tokens": 30}.items()
    # With a cache it does not say what of them was cached, and no token is in two parts of one whole.
    for cached in ("cache_read.input_tokens", "cache_creation.input_tokens"):
        found = data(CALL | parts | {f"gen_ai.usage.{cached}": 900})
        assert not expected.keys() & found.keys()
        assert found["audio_output_tokens"] == 40
    written: dict[str, Attribute] = {"gen_ai.usage.cache_creation.input_tokens": 200}
    assert data(CALL | written | {f"{given}cached_write_tokens_1h": 80})["cache_write_1h_tokens"] == 80
    assert data(CALL | {"gen_ai.usage.output_image_tokens": 30})["image_output_tokens"] == 30


@pytest.mark.parametrize("operation", ["chat", "embeddings"])
def test_what_litellms_own_cache_answered_is_a_request_that_took_nothing(operation: str) -> None:
    """The span has the tokens of the first answer. Embeddings have no id, so each answer was billed again."""
    call = CALL | {"gen_ai.operation.name": operation, "gen_ai.usage.cache_read.input_tokens": 1_000}
    found = data(call | {"litellm.cache_hit": True})
    assert (found["input_tokens"], found["output_tokens"], found["cached"]) == (0, 0, True)
    assert (found["request_id"], "cached_tokens" in found) == (f"{TRACE}:{SPAN}", False)
    missed = data(call | {"litellm.cache_hit": False})
    assert (missed["input_tokens"], missed["request_id"]) == (1_200, CALL["gen_ai.response.id"])
    assert "cached" not in missed


NO_NAMES = ["", "chatcmpl-1764093600", "1764093600123", "chatcmpl-17", "chatcmpl-998", "cmpl_0", "42"]
NO_NAMES += ["vertex-ai-1764093600123", "chat.id.41", "chatcmpl-A1", "koboldcpp"]
NO_NAMES += ["fastflowlm-chat-completion"]
NAMES = ["msg_01XFDUDYJgAACzvnptvVoYEL", "chatcmpl-9J3uyL8392", "0b5c7d9e-1", "resp-abc", "a/7"]


@pytest.mark.parametrize("response_id", [*NO_NAMES, *NAMES])
def test_the_request_is_the_response_or_the_span_where_that_names_no_single_response(response_id: str) -> None:
    """Ollama numbers its responses at random below 999, so two calls of an account soon have the same id."""
    expected = response_id if response_id in NAMES else f"{TRACE}:{SPAN}"
    assert data(CALL | {"gen_ai.response.id": response_id})["request_id"] == expected


@pytest.mark.parametrize("ends_later", [True, False])
def test_an_estimated_span_never_bills_beside_a_measured_one(ends_later: bool) -> None:
    sdk = span(CALL | {"gen_ai.usage.cache_read.input_tokens": 900}, end_time_unix_nano=2_000_000_000)
    marked = CALL | {"weir.usage_source": "estimated"}
    framework = span(marked, span_id=b"framewrk", end_time_unix_nano=3_000_000_000 if ends_later else 1_000_000_000)
    reports = [json.loads(each.document) for each in read(request(framework, sdk))]
    assert len({report["data"]["request_id"] for report in reports}) == 1
    for order in (reports, reports[::-1]):
        rows = [received(lsn, report) for lsn, report in enumerate(order)]
        (billed,) = ranked(rows, lambda _: 1_000_000)
        assert order[billed.completion or 0]["data"].get("cached_tokens") == 900
    (alone,) = ranked([received(0, reports[0])], lambda _: 1_000_000)
    assert alone.completion == 0


def received(lsn: int, event: dict[str, Any]) -> Received:
    occurred_us = (datetime.fromisoformat(event["time"]) - EPOCH) // timedelta(microseconds=1)
    data = event["data"]
    return Received(
        lsn, Side.BOTH, lsn, occurred_us, event["id"].encode(), data["status"], data.get("usage_source"), True
    )


def test_without_an_id_of_the_response_the_span_is_the_request() -> None:
    without = {name: value for name, value in CALL.items() if name != "gen_ai.response.id"}
    assert data(without)["request_id"] == f"{TRACE}:{SPAN}"


@pytest.mark.parametrize("changes", [{"trace_id": b""}, {"span_id": b"\1"}, {"trace_id": b"", "span_id": b""}])
def test_a_span_without_an_id_has_no_identity_to_be_billed_by(changes: dict[str, Any]) -> None:
    (found,) = read(request(span(CALL, **changes)))
    assert "id" not in event_of(found)


def test_the_account_is_the_spans_or_its_resources() -> None:
    resource: dict[str, Attribute] = {"service.name": "gateway", "tenant": "globex"}
    (of_resource,) = read(request(span(CALL), resource=resource), "tenant")
    (of_span,) = read(request(span(CALL | {"tenant": "acme"}), resource=resource), "tenant")
    (of_none,) = read(request(span(CALL)), "tenant")
    assert (event_of(of_resource)["subject"], event_of(of_span)["subject"]) == ("globex", "acme")
    assert "subject" not in event_of(of_none)


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, st.integers(1, 2**64 - 1), st.text(st.characters(exclude_categories=["Cs"])))
def test_an_event_has_the_values_of_its_span_to_the_last_digit(number: float, nanos: int, text: str) -> None:
    tokens: dict[str, Attribute] = {"gen_ai.usage.input_tokens": number, "user.id": text}
    (found,) = read(request(span(CALL | tokens, end_time_unix_nano=nanos)))
    event = json.loads(found.document)
    assert event["data"]["input_tokens"] == number
    assert event["data"].get("user_id") == (text or None)
    again = read(request(span(CALL | tokens, end_time_unix_nano=nanos)))
    assert [each.document for each in again] == [found.document]


@given(st.binary(max_size=200), st.sampled_from([PROTOBUF, JSON]))
def test_any_bytes_are_a_request_or_refused(body: bytes, media_type: str) -> None:
    with suppress(NotOtlp):
        assert_events(usage(media_type, body))


def assert_events(found: SpanUsage) -> None:
    """Each span is an event, or has a problem that says why it is none."""
    assert all(each.problem or event_of(each)["type"] == TYPE for each in found.spans)


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_a_body_that_is_not_otlp_is_refused(media_type: str) -> None:
    with pytest.raises(NotOtlp, match="no ExportTraceServiceRequest as " + media_type):
        usage(media_type, b"[")


def test_json_that_newer_senders_write_is_read() -> None:
    content = json.loads(as_json(request(span(CALL)))) | {"added": {"later": 1}}
    (found,) = usage(JSON, json.dumps(content).encode()).spans
    assert event_of(found)["data"]["input_tokens"] == 1200


@pytest.mark.parametrize("length", [0, 1, 127, 128, 1999, 5000])
def test_a_refusal_is_a_status_as_grpc_has_it(length: int) -> None:
    given = Status.FromString(failure(PROTOBUF, HTTPStatus.SERVICE_UNAVAILABLE, "x" * length))
    assert (given.code, given.message) == (14, "x" * min(length, 2_000))
    assert json.loads(failure(JSON, HTTPStatus.BAD_REQUEST, "no")) == {"code": 3, "message": "no"}


def test_an_answer_has_the_number_of_rejected_spans() -> None:
    assert (success(PROTOBUF, 0, ""), success(JSON, 0, "")) == (b"", b"{}")
    partial = ExportTraceServiceResponse.FromString(success(PROTOBUF, 2, "why")).partial_success
    assert (partial.rejected_spans, partial.error_message) == (2, "why")
    assert json.loads(success(JSON, 2, "why")) == {"partialSuccess": {"rejectedSpans": "2", "errorMessage": "why"}}


def test_empty_attributes_are_ignored_and_numbers_may_be_texts() -> None:
    found = data(
        CALL
        | {"gen_ai.response.model": "", "gen_ai.usage.input_tokens": "1200", "gen_ai.usage.output_tokens": 350.0}
        | {"user.id": 77, "error.type": ""}
    )
    expected = {"model": "gpt-4o", "input_tokens": 1200, "output_tokens": 350, "user_id": "77", "status": "completed"}
    assert found.items() >= expected.items()
    resource: dict[str, Attribute] = {"service.name": "gateway", "weir.account": 42}
    (of_resource,) = read(request(span(CALL | {"weir.account": ""}), resource=resource))
    assert event_of(of_resource)["subject"] == "42"


@pytest.mark.parametrize(
    "ids", [(bytes(16), bytes(8)), (bytes(16), b"12345678"), (b"1234567890123456", bytes(8))], ids=str
)
def test_ids_of_zeros_are_none(ids: tuple[bytes, bytes]) -> None:
    (found,) = read(request(span(CALL, trace_id=ids[0], span_id=ids[1])))
    assert (found.id, "id" in event_of(found)) == ("", False)


@pytest.mark.parametrize("span_id", ["eee19b7ec3c1b14", "z" * 16, 7, None, ["e" * 16]])
def test_ids_that_are_not_hexadecimal_are_none(span_id: object) -> None:
    content = json.loads(as_json(request(span(CALL))))
    content["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"] = span_id
    (found,) = usage(JSON, json.dumps(content).encode()).spans
    assert "id" not in event_of(found)


def test_a_span_that_cannot_be_read_takes_no_other_with_it() -> None:
    """A prompt that was cut within a character is no UTF-8."""
    good, bad = span(CALL), span(CALL | {"prompt": "ab?"})
    body = request(good, bad, good).SerializeToString().replace(b"ab?", b"ab\xe2")
    first, unread, last = usage(PROTOBUF, body).spans
    assert (first.problem, last.document) == (None, first.document)
    assert (unread.problem or "").startswith("it is no span of protobuf, has a text that is not UTF-8")
    escaped = as_json(request(good, span(CALL | {"user.id": "?"}), good)).replace(b'"?"', b'"\\ud800"')
    assert [each.problem for each in usage(JSON, escaped).spans] == [None, "a text in it is no Unicode", None]


def test_a_resource_that_cannot_be_read_leaves_its_spans_without_a_service() -> None:
    resource: dict[str, Attribute] = {"service.name": "gateway", "other": "ab?"}
    body = request(span(CALL), resource=resource).SerializeToString().replace(b"ab?", b"ab\xe2")
    (found,) = usage(PROTOBUF, body).spans
    assert "source" not in event_of(found)


def test_spans_with_tokens_of_an_operation_that_nobody_knows_are_counted_by_it() -> None:
    others = {name: value for name, value in CALL.items() if name != "gen_ai.operation.name"}
    spans = [span(others), *[span(others | {"gen_ai.operation.name": "rerank"})] * 2]
    summaries = [span(CALL | {"gen_ai.operation.name": name}) for name in ("invoke_agent", "execute_tool")]
    found = usage(PROTOBUF, request(*spans, *summaries).SerializeToString())
    assert found == usage(JSON, as_json(request(*spans, *summaries)))
    assert (found.spans, found.unknown) == ([], {"": 1, "rerank": 2})


def test_spans_of_openinference_are_counted_as_tokens_that_nobody_bills() -> None:
    """They have names of their own, and no operation: the answer was that all was well."""
    found = usage(PROTOBUF, request(span({"llm.token_count.prompt": 12, "llm.model_name": "m"})).SerializeToString())
    assert (found.spans, found.unknown) == ([], {"": 1})


def test_a_request_above_a_limit_is_not_read() -> None:
    def as_protobuf(*spans: ProtobufSpan) -> bytes:
        return request(*spans).SerializeToString()

    around = 3  # its resource, and its scope among two members
    assert usage(PROTOBUF, as_protobuf(*[ProtobufSpan()] * (MAX_SPANS - around))).spans == []
    with pytest.raises(TooLarge):
        usage(PROTOBUF, as_protobuf(*[ProtobufSpan()] * (MAX_SPANS - around + 1)))
    with pytest.raises(TooLarge):
        usage(PROTOBUF, as_protobuf(*[span(CALL)] * (MAX_USAGE_SPANS + 1)))
    for empty_members in (b"\x0a\x00", b"\x10\x00"):
        with pytest.raises(TooLarge):
            usage(PROTOBUF, empty_members * (MAX_SPANS + 1))
    for member in ("resourceSpans", "other"):
        with pytest.raises(TooLarge):
            usage(JSON, json.dumps({member: [{}] * MAX_JSON_CONTAINERS}).encode())
    with pytest.raises(TooLarge):
        usage(JSON, json.dumps({"resourceSpans": [{}] * (MAX_SPANS + 1)}).encode())


def test_a_span_above_its_limit_is_rejected_by_itself() -> None:
    large, good = span(CALL | {"prompt": "x" * MAX_SPAN_BYTES}), span(CALL)
    first, last = usage(PROTOBUF, request(large, good).SerializeToString()).spans
    assert (first.problem is not None, last.problem) == (True, None)


@given(st.data())
def test_a_request_that_is_cut_off_anywhere_is_refused_or_ends_before_a_resource(data: st.DataObject) -> None:
    body = request(span(CALL), span(CALL)).SerializeToString()
    cut = data.draw(st.integers(1, len(body) - 1))
    with pytest.raises(NotOtlp, match="cut off"):
        usage(PROTOBUF, body[:cut])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["key", "value", "stringValue", "intValue", "attributes", "spans", "traceId"]),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_json_in_the_place_of_spans_and_attributes_ends_nothing(content: object) -> None:
    known = {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}
    for attributes in (content, [known, content], [known, {"key": "gen_ai.usage.input_tokens", "value": content}]):
        spans = [{"attributes": attributes, "traceId": content, "endTimeUnixNano": content, "status": content}]
        for resource in (content, {"attributes": content}):
            of_resource = {"resource": resource, "scopeSpans": [{"spans": spans}, {"spans": content}, content]}
            found = usage(JSON, json.dumps({"resourceSpans": [of_resource, content]}).encode())
            assert_events(found)
            assert len(found.spans) == (attributes is not content)
