"""Spans of an ExportTraceServiceRequest in OTLP's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Status

from api.span_record import SPAN_ID, TRACE_ID, Attribute, Count, NotOtlp, SpanRecord, TooLarge, valid_id

JSON = "application/json"
MAX_JSON_CONTAINERS = 1_000_000
"""Objects and arrays in a request: each takes up to 200 bytes in memory. A span with 20 attributes has 45."""
_INTEGER = re.compile(r"-?[0-9]{1,20}")


def json_spans(body: bytes) -> Iterator[SpanRecord]:
    """OTLP's JSON: names in camel case, ids in hexadecimal, whole numbers as numbers or texts; others are unknown."""
    if body.count(b"{") + body.count(b"[") > MAX_JSON_CONTAINERS:
        raise TooLarge(f"a request has at most {MAX_JSON_CONTAINERS} objects and arrays")
    count = Count()
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
                    valid_id(span.get("traceId"), TRACE_ID),
                    valid_id(span.get("spanId"), SPAN_ID),
                    _integer(span.get("endTimeUnixNano")) or 0,
                    code in (Status.STATUS_CODE_ERROR, "STATUS_CODE_ERROR"),
                    _json_attributes(span.get("attributes")),
                    shared,
                )


def _objects(given: object, count: Count | None = None) -> Iterator[dict[str, Any]]:
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
