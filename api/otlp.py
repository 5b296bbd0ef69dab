"""OTLP over HTTP: a request → its spans, one by one; and the answers, each as protobuf or as JSON.

The protocol is https://opentelemetry.io/docs/specs/otlp. A span that cannot be read is one bad span and not a bad
request: whoever exports spans drops the whole request after a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from api.otlp_json import JSON, json_spans
from api.otlp_protobuf import protobuf_spans
from api.span_record import SpanRecord

_CODES = {
    HTTPStatus.UNAUTHORIZED: 16,
    HTTPStatus.FORBIDDEN: 7,
    HTTPStatus.TOO_MANY_REQUESTS: 8,
    HTTPStatus.SERVICE_UNAVAILABLE: 14,
}
"""The codes of google.rpc.Status for those of HTTP; else 3, an argument that is not valid."""
_INVALID_ARGUMENT = 3
_MAX_MESSAGE_BYTES = 2_000


def spans_in(media_type: str, body: bytes) -> Iterator[SpanRecord]:
    """The spans of an ExportTraceServiceRequest, in their order. Raises NotOtlp, TooLarge."""
    return json_spans(body) if media_type == JSON else protobuf_spans(body)


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
