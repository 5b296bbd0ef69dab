"""Spans of an ExportTraceServiceRequest in protobuf, each parsed by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from api.span_record import SPAN_ID, TRACE_ID, Attribute, Attributes, Count, NotOtlp, SpanRecord, valid_id

PROTOBUF = "application/x-protobuf"
MAX_SPAN_BYTES = 4 << 20
"""Of one span, or resource, as protobuf: read, empty attributes take 27 times their size."""
Parsed = TypeVar("Parsed", bound=Message)

_RESOURCE_SPANS, _RESOURCE, _SCOPE_SPANS, _SPANS = 1, 1, 2, 2
"""The numbers of the fields on the way from a request to its spans."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def protobuf_spans(body: bytes) -> Iterator[SpanRecord]:
    """Each span is parsed by itself: the whole request in memory would take 87 times its size where spans are empty."""
    count = Count()
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
                    valid_id(span.trace_id.hex(), TRACE_ID),
                    valid_id(span.span_id.hex(), SPAN_ID),
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


def _members(message: memoryview, number: int, count: Count | None = None) -> Iterator[memoryview]:
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
