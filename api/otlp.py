"""OTLP: a request of spans → events of usage; and what is answered, as protobuf or as JSON.

The names are those of OpenTelemetry's conventions for generative AI, today's and those of the releases before:
https://github.com/open-telemetry/semantic-conventions-genai. The protocol is https://opentelemetry.io/docs/specs/otlp.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from metering.instants import EPOCH, rfc3339

PROTOBUF, JSON = "application/x-protobuf", "application/json"
TYPE = "ai.inference.usage.v1"
OPERATION, SERVICE = "gen_ai.operation.name", "service.name"
OPERATIONS = frozenset(("chat", "text_completion", "generate_content", "embeddings"))
"""Calls of a model. A span of an agent or a tool adds up calls that have spans of their own."""
TEXTS = {
    "model": ("gen_ai.response.model", "gen_ai.request.model"),
    "request_id": ("gen_ai.response.id",),
    "user_id": ("user.id",),
    "operation": (OPERATION,),
}
QUANTITIES = {
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "cached_tokens": ("gen_ai.usage.cache_read.input_tokens",),
    "cache_write_tokens": ("gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_creation.input_tokens"),
    "audio_input_tokens": ("gen_ai.usage.audio.input_tokens",),
    "image_input_tokens": ("gen_ai.usage.image.input_tokens",),
    "reasoning_tokens": ("gen_ai.usage.reasoning.output_tokens",),
    "audio_output_tokens": ("gen_ai.usage.audio.output_tokens",),
    "image_output_tokens": ("gen_ai.usage.image.output_tokens",),
}
"""Column → the attributes that report it, the current name first."""
CACHED = {
    "audio_input_tokens": "gen_ai.usage.audio.cache_read.input_tokens",
    "image_input_tokens": "gen_ai.usage.image.cache_read.input_tokens",
}
"""What of a column is counted as cached, too: parts of one whole share no token."""
ERROR_TYPE = "error.type"
SMALL_NUMBER = re.compile(r"(?:[A-Za-z]+[-_])?[0-9]{1,9}")
"""A response's id that others soon have, too: Ollama and those who follow it number theirs at random below 999."""
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8
_CODES = {
    HTTPStatus.UNAUTHORIZED: 16,
    HTTPStatus.FORBIDDEN: 7,
    HTTPStatus.TOO_MANY_REQUESTS: 8,
    HTTPStatus.SERVICE_UNAVAILABLE: 14,
}
"""The codes of google.rpc.Status for those of HTTP; else 3, an argument that is not valid."""
_INVALID_ARGUMENT = 3
_MAX_MESSAGE_BYTES = 2_000


class NotOtlp(ValueError):
    """A body that is no request of spans."""


@dataclass(frozen=True)
class UsageSpan:
    """A span that reports a call of a model: its `trace id:span id` in hexadecimal, and the event that it is."""

    id: str
    event: Mapping[str, Any]

    @property
    def document(self) -> bytes:
        """The event as Kafka is to have it: the same for the same span, so one that is exported twice is a repeat."""
        return json.dumps(self.event, ensure_ascii=False, separators=(",", ":")).encode()


def usage_spans(media_type: str, body: bytes, account_attribute: str) -> list[UsageSpan]:
    """The spans of an ExportTraceServiceRequest that report a call of a model, in their order.

    `account_attribute` names the account, on the span or on its resource. Raises NotOtlp.
    """
    request = ExportTraceServiceRequest()
    try:
        if media_type == JSON:
            json_format.Parse(body, request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise NotOtlp(f"no ExportTraceServiceRequest as {media_type}: {error}") from None
    return list(_usage_spans(request, account_attribute, is_json=media_type == JSON))


def _usage_spans(request: ExportTraceServiceRequest, account_attribute: str, *, is_json: bool) -> Iterator[UsageSpan]:
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                attributes = _values(span.attributes)
                if attributes.get(OPERATION) in OPERATIONS:
                    trace_id, span_id = (
                        _hexadecimal(given, is_json=is_json) for given in (span.trace_id, span.span_id)
                    )
                    name = f"{trace_id}:{span_id}"
                    account = attributes.get(account_attribute, resource.get(account_attribute))
                    is_known = len(trace_id) == 2 * _TRACE_ID_BYTES and len(span_id) == 2 * _SPAN_ID_BYTES
                    event = _event(name if is_known else None, resource.get(SERVICE), account, span, attributes)
                    yield UsageSpan(name, event)


def _event(
    name: str | None, source: object, account: object, span: Span, attributes: Mapping[str, object]
) -> dict[str, Any]:
    """The CloudEvent; what the span lacks is absent, and what it has in another type is as it came."""
    ended = EPOCH + timedelta(microseconds=span.end_time_unix_nano // 1_000) if span.end_time_unix_nano else None
    is_error = ERROR_TYPE in attributes or span.status.code == Status.STATUS_CODE_ERROR
    texts = {column: _first(attributes, names) for column, names in TEXTS.items()}
    quantities = {column: _first(attributes, names) for column, names in QUANTITIES.items()}
    for column, cached in CACHED.items():
        whole, part = quantities[column], attributes.get(cached)
        if type(whole) is int and type(part) is int:
            quantities[column] = whole - part
    data = {
        **texts,
        "request_id": _request_id(texts["request_id"], name),
        "status": "error" if is_error else "completed",
    }
    event = {
        "specversion": "1.0",
        "type": TYPE,
        "source": source,
        "id": name,
        "subject": account,
        "time": None if ended is None else rfc3339(ended),
        "data": {column: value for column, value in (data | quantities).items() if value is not None},
    }
    return {member: value for member, value in event.items() if value is not None}


def _request_id(response_id: object, span: str | None) -> object:
    """The response's id, which all spans of one call share; the span itself where that names no single response."""
    is_name = response_id and not (isinstance(response_id, str) and SMALL_NUMBER.fullmatch(response_id))
    return response_id if is_name else span


def _first(attributes: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _values(attributes: Iterator[KeyValue] | Any) -> dict[str, object]:
    """Attributes that are texts, numbers or booleans; the first of a name holds, and all others are left out."""
    found: dict[str, object] = {}
    for attribute in attributes:
        value = _scalar(attribute.value)
        if value is not None:
            found.setdefault(attribute.key, value)
    return found


def _scalar(value: AnyValue) -> str | bool | int | float | None:
    kind = value.WhichOneof("value")
    if kind == "double_value":
        number = float(value.double_value)
        return int(number) if number.is_integer() else number
    if kind in ("string_value", "bool_value", "int_value"):
        found: str | bool | int = getattr(value, kind)
        return found
    return None


def _hexadecimal(given: bytes, *, is_json: bool) -> str:
    """An id as text. In OTLP's JSON it is hexadecimal; protobuf's own JSON has read that as base64."""
    return base64.b64encode(given).decode().lower() if is_json else given.hex()


def success(media_type: str, rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse, with a partial success where spans were rejected."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = message[:_MAX_MESSAGE_BYTES]
    if media_type == JSON:
        return json_format.MessageToJson(response, indent=None).encode()
    return response.SerializeToString()


def failure(media_type: str, status: HTTPStatus, message: str) -> bytes:
    """A google.rpc.Status: `code` is its first field, a number; `message` its second, a text."""
    code, text = _CODES.get(status, _INVALID_ARGUMENT), message[:_MAX_MESSAGE_BYTES]
    if media_type == JSON:
        return json.dumps({"code": code, "message": text}).encode()
    encoded = text.encode()
    return bytes((0x08, code, 0x12)) + _varint(len(encoded)) + encoded


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))
