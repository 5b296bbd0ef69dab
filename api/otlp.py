"""OTLP over HTTP: a request → its spans, one by one; and the answers, each as protobuf or as JSON.

The protocol is https://opentelemetry.io/docs/specs/otlp. A span that cannot be read is one bad span and not a bad
request: whoever exports spans drops the whole request after a refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PROTOBUF, JSON = "application/x-protobuf", "application/json"
MAX_SPANS = 50_000
"""Of one request, whatever they report, with the resources and scopes around them. A Collector's batches have 8,192."""
MAX_SPAN_BYTES = 4 << 20
"""Of one span, or resource, as protobuf: read, empty attributes take 27 times their size."""
MAX_JSON_CONTAINERS = 1_000_000
"""Objects and arrays in a request: each takes up to 200 bytes in memory. A span with 20 attributes has 45."""
Parsed = TypeVar("Parsed", bound=Message)
Attribute = str | bool | int | float
Attributes = Mapping[str, Attribute]

_TRACE_ID, _SPAN_ID = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{16}")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_RESOURCE_SPANS, _RESOURCE, _SCOPE_SPANS, _SPANS = 1, 1, 2, 2
"""The numbers of the fields on the way from a request to its spans."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
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


class TooLarge(ValueError):
    """A request with more than a limit allows; the message names it."""


@dataclass(frozen=True)
class SpanRecord:
    """What is read of a span. Attributes that are no text, number or boolean are left out."""

    trace_id: str = ""
    """In hexadecimal; empty where it is not valid, as is the span's."""
    span_id: str = ""
    ended_nanos: int = 0
    is_error: bool = False
    attributes: Attributes = field(default_factory=dict)
    resource: Attributes = field(default_factory=dict)
    problem: str | None = None
    """Why it could not be read."""

    @property
    def id(self) -> str:
        """`trace id:span id`; empty without either."""
        return f"{self.trace_id}:{self.span_id}" if self.trace_id and self.span_id else ""


def spans_in(media_type: str, body: bytes) -> Iterator[SpanRecord]:
    """The spans of an ExportTraceServiceRequest, in their order. Raises NotOtlp, TooLarge."""
    return _json_spans(body) if media_type == JSON else _protobuf_spans(body)


class _Count:
    """Counts resources, scopes and spans of a request."""

    def __init__(self) -> None:
        self._found = 0

    def add(self) -> None:
        """Raises TooLarge."""
        self._found += 1
        if self._found > MAX_SPANS:
            raise TooLarge(f"a request has at most {MAX_SPANS} spans, with their resources and scopes")


def _protobuf_spans(body: bytes) -> Iterator[SpanRecord]:
    """Each span is parsed by itself: the whole request in memory would take 87 times its size where spans are empty."""
    count = _Count()
    for of_resource in _members(memoryview(body), _RESOURCE_SPANS, count):
        resource: Attributes = {}
        for content in _members(of_resource, _RESOURCE, count):
            found = _parsed(Resource, content)
            resource = {} if found is None else _protobuf_attributes(found.attributes)
        for of_scope in _members(of_resource, _SCOPE_SPANS):
            for content in _members(of_scope, _SPANS, count):
                span = _parsed(Span, content)
                if span is None:
                    problem = f"it is no span of protobuf, has a text that is not UTF-8, or over {MAX_SPAN_BYTES} bytes"
                    yield SpanRecord(resource=resource, problem=problem)
                    continue
                yield SpanRecord(
                    _valid_id(span.trace_id.hex(), _TRACE_ID),
                    _valid_id(span.span_id.hex(), _SPAN_ID),
                    span.end_time_unix_nano,
                    span.status.code == Status.STATUS_CODE_ERROR,
                    _protobuf_attributes(span.attributes),
                    resource,
                )


def _parsed(kind: type[Parsed], content: memoryview) -> Parsed | None:
    """A message; None where it is none, or too large."""
    if len(content) > MAX_SPAN_BYTES:
        return None
    try:
        return kind.FromString(bytes(content))
    except DecodeError:
        return None


def _members(message: memoryview, number: int, count: _Count | None = None) -> Iterator[memoryview]:
    """The members of a message that have this field number, in protobuf's wire format. Raises NotOtlp, TooLarge."""
    position = 0
    while position < len(message):
        if count is not None:
            count.add()
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _BYTES:
            size, position = _varint(message, position)
            end = position + size
            if end <= len(message) and tag >> 3 == number:
                yield message[position:end]
        elif kind == _VARINT:
            _, end = _varint(message, position)
        elif kind in _FIXED:
            end = position + _FIXED[kind]
        else:
            raise NotOtlp(f"no ExportTraceServiceRequest as {PROTOBUF}")
        if end > len(message):
            raise NotOtlp(f"no ExportTraceServiceRequest as {PROTOBUF}: it is cut off")
        position = end


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise NotOtlp(f"no ExportTraceServiceRequest as {PROTOBUF}: it is cut off")


def _protobuf_attributes(attributes: Any) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    attribute: KeyValue
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        if kind in ("string_value", "bool_value", "int_value", "double_value"):
            found.setdefault(attribute.key, getattr(attribute.value, kind))
    return found


def _json_spans(body: bytes) -> Iterator[SpanRecord]:
    """OTLP's JSON: names in camel case, ids in hexadecimal, whole numbers as numbers or texts; others are unknown."""
    if body.count(b"{") + body.count(b"[") > MAX_JSON_CONTAINERS:
        raise TooLarge(f"a request has at most {MAX_JSON_CONTAINERS} objects and arrays")
    count = _Count()
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotOtlp(f"no ExportTraceServiceRequest as {JSON}: {error}") from None
    if not isinstance(request, dict):
        raise NotOtlp(f"no ExportTraceServiceRequest as {JSON}: it is no object")
    for of_resource in _objects(request.get("resourceSpans"), count):
        resource = of_resource.get("resource")
        shared = _json_attributes(resource.get("attributes")) if isinstance(resource, dict) else {}
        for of_scope in _objects(of_resource.get("scopeSpans"), count):
            for span in _objects(of_scope.get("spans"), count):
                status = span.get("status")
                code = status.get("code") if isinstance(status, dict) else None
                yield SpanRecord(
                    _valid_id(span.get("traceId"), _TRACE_ID),
                    _valid_id(span.get("spanId"), _SPAN_ID),
                    _integer(span.get("endTimeUnixNano")) or 0,
                    code in (Status.STATUS_CODE_ERROR, "STATUS_CODE_ERROR"),
                    _json_attributes(span.get("attributes")),
                    shared,
                )


def _objects(given: object, count: _Count | None = None) -> Iterator[dict[str, Any]]:
    for member in given if isinstance(given, list) else ():
        if count is not None:
            count.add()
        if isinstance(member, dict):
            yield member


def _json_attributes(given: object) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for attribute in _objects(given):
        name, value = attribute.get("key"), attribute.get("value")
        scalar = _json_scalar(value) if isinstance(value, dict) else None
        if isinstance(name, str) and scalar is not None:
            found.setdefault(name, scalar)
    return found


def _json_scalar(value: Mapping[str, object]) -> Attribute | None:
    text, is_true, number = value.get("stringValue"), value.get("boolValue"), value.get("doubleValue")
    if isinstance(text, str):
        return text
    if isinstance(is_true, bool):
        return is_true
    if (whole := _integer(value.get("intValue"))) is not None:
        return whole
    return float(number) if type(number) in (int, float) else None  # type: ignore[arg-type]


def _integer(given: object) -> int | None:
    if type(given) is int:
        return given
    return int(given) if isinstance(given, str) and _INTEGER.fullmatch(given) else None


def _valid_id(given: object, form: re.Pattern[str]) -> str:
    """An id as it is written; empty for what is none, as that of zeros."""
    text = given.lower() if isinstance(given, str) else ""
    return text if form.fullmatch(text) and text.strip("0") else ""


def success(media_type: str, rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse; a message without rejected spans is a warning."""
    response = ExportTraceServiceResponse()
    if message:
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
    return bytes((0x08, code, 0x12)) + _encoded_varint(len(encoded)) + encoded


def _encoded_varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))
