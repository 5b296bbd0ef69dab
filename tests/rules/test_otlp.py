"""Spans of generative AI → events of usage: what OpenTelemetry's conventions mean, and what protobuf and JSON carry."""

from __future__ import annotations

import json
from contextlib import suppress
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

from api.otlp import JSON, PROTOBUF, NotOtlp, UsageSpan, failure, success, usage_spans

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


def read(given: ExportTraceServiceRequest, account: str = "weir.account") -> list[UsageSpan]:
    """The usage in a request, which is the same as protobuf and as JSON."""
    found = usage_spans(PROTOBUF, given.SerializeToString(), account)
    assert [each.event for each in usage_spans(JSON, as_json(given), account)] == [each.event for each in found]
    return found


def data(given: dict[str, Attribute], **changes: Any) -> dict[str, Any]:
    (found,) = read(request(span(given, **changes)))
    of_event: dict[str, Any] = found.event["data"]
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


@pytest.mark.parametrize(
    ("more", "changes"),
    [({"error.type": "timeout"}, {}), ({}, {"status": {"code": 2}})],
    ids=["error.type", "the span's status"],
)
def test_a_call_that_failed_is_an_error(more: dict[str, Attribute], changes: dict[str, Any]) -> None:
    assert data(CALL | more, **changes)["status"] == "error"


NO_NAMES = ["", "chatcmpl-17", "chatcmpl-998", "cmpl_0", "42"]
NAMES = ["chatcmpl-1234567890", "msg_01XFDUDYJgAACzvnptvVoYEL", "chatcmpl-9J3uyL8392", "0b5c7d9e-1", "resp-abc", "a/7"]


@pytest.mark.parametrize("response_id", [*NO_NAMES, *NAMES])
def test_the_request_is_the_response_or_the_span_where_that_names_no_single_response(response_id: str) -> None:
    """Ollama numbers its responses at random below 999, so two calls of an account soon have the same id."""
    expected = response_id if response_id in NAMES else f"{TRACE}:{SPAN}"
    assert data(CALL | {"gen_ai.response.id": response_id})["request_id"] == expected


def test_without_an_id_of_the_response_the_span_is_the_request() -> None:
    without = {name: value for name, value in CALL.items() if name != "gen_ai.response.id"}
    assert data(without)["request_id"] == f"{TRACE}:{SPAN}"


@pytest.mark.parametrize("changes", [{"trace_id": b""}, {"span_id": b"\1"}, {"trace_id": b"", "span_id": b""}])
def test_a_span_without_an_id_has_no_identity_to_be_billed_by(changes: dict[str, Any]) -> None:
    (found,) = read(request(span(CALL, **changes)))
    assert "id" not in found.event


def test_the_account_is_the_spans_or_its_resources() -> None:
    resource: dict[str, Attribute] = {"service.name": "gateway", "tenant": "globex"}
    (of_resource,) = read(request(span(CALL), resource=resource), "tenant")
    (of_span,) = read(request(span(CALL | {"tenant": "acme"}), resource=resource), "tenant")
    (of_none,) = read(request(span(CALL)), "tenant")
    assert (of_resource.event["subject"], of_span.event["subject"]) == ("globex", "acme")
    assert "subject" not in of_none.event


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, st.integers(1, 2**64 - 1), st.text(st.characters(exclude_categories=["Cs"])))
def test_whatever_a_span_says_the_event_says_it_to_the_last_digit(number: float, nanos: int, text: str) -> None:
    tokens: dict[str, Attribute] = {"gen_ai.usage.input_tokens": number, "user.id": text}
    (found,) = read(request(span(CALL | tokens, end_time_unix_nano=nanos)))
    event = json.loads(found.document)
    assert event["data"]["input_tokens"] == number
    assert event["data"].get("user_id") == text
    again = read(request(span(CALL | tokens, end_time_unix_nano=nanos)))
    assert [each.document for each in again] == [found.document]


@given(st.binary(max_size=200), st.sampled_from([PROTOBUF, JSON]))
def test_any_bytes_are_a_request_or_refused(body: bytes, media_type: str) -> None:
    with suppress(NotOtlp):
        usage_spans(media_type, body, "weir.account")


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_what_is_no_request_says_so(media_type: str) -> None:
    with pytest.raises(NotOtlp, match="no ExportTraceServiceRequest as " + media_type):
        usage_spans(media_type, b"[", "weir.account")


def test_json_that_newer_senders_write_is_read() -> None:
    content = json.loads(as_json(request(span(CALL)))) | {"added": {"later": 1}}
    (found,) = usage_spans(JSON, json.dumps(content).encode(), "weir.account")
    assert found.event["data"]["input_tokens"] == 1200


@pytest.mark.parametrize("length", [0, 1, 127, 128, 1999, 5000])
def test_a_refusal_is_a_status_as_grpc_has_it(length: int) -> None:
    given = Status.FromString(failure(PROTOBUF, HTTPStatus.SERVICE_UNAVAILABLE, "x" * length))
    assert (given.code, given.message) == (14, "x" * min(length, 2_000))
    assert json.loads(failure(JSON, HTTPStatus.BAD_REQUEST, "no")) == {"code": 3, "message": "no"}


def test_an_answer_says_how_many_spans_were_rejected_and_nothing_where_none_was() -> None:
    assert (success(PROTOBUF, 0, ""), success(JSON, 0, "")) == (b"", b"{}")
    partial = ExportTraceServiceResponse.FromString(success(PROTOBUF, 2, "why")).partial_success
    assert (partial.rejected_spans, partial.error_message) == (2, "why")
    assert json.loads(success(JSON, 2, "why")) == {"partialSuccess": {"rejectedSpans": "2", "errorMessage": "why"}}
