"""Odd, and valid: what a careless reader would refuse or stumble over."""

from __future__ import annotations

import json

from tests.corpus.documents import REMOVED, GoodDocument, completion, encoded, packed, request, request_with

RECORD_BYTES = 262_144
"""`max.message.bytes` of `events`: the largest record batch, its own header included."""
ROOM_BYTES = 256
"""For the headers of a batch with one record and for the record's key."""


def filled(total_bytes: int) -> bytes:
    """A valid request of exactly so many bytes: an unknown field holds the filling."""
    empty = len(encoded(request_with(note="")))
    return encoded(request_with(note="x" * (total_bytes - empty)))


def _nested(levels: int) -> bytes:
    return encoded(request_with(deep=1)).replace(b'"deep":1', b'"deep":' + b"[" * levels + b"]" * levels)


_REQUEST = encoded(request())
_HEARTBEAT = {"type": "source.heartbeat.v1", "data": {}}
_VALID: dict[str, bytes] = {
    "request": _REQUEST,
    "completion": encoded(completion()),
    "usage": encoded({**request_with(**completion()["data"]), "type": "ai.inference.usage.v1"}),
    "heartbeat": encoded(request(**_HEARTBEAT)),
    "heartbeat_without_subject": encoded(request(**_HEARTBEAT, subject=REMOVED)),
    "heartbeat_with_null_subject": encoded(request(**_HEARTBEAT, subject=None)),
    "heartbeat_without_data": encoded(request(type="source.heartbeat.v1", data=REMOVED)),
    "unknown_type": encoded(request(type="com.example.something.v9", data=[1, "two", None])),
    "unknown_type_with_binary_data": encoded(request(type="com.example.blob", data=REMOVED, data_base64="AAEC")),
    "base64_data": encoded(packed(request())),
    "base64_data_and_null_data": encoded({"data": None, **packed(request(datacontenttype="application/json"))}),
    "in_the_frame_of_a_schema_registry": b"\0\0\1\2\3" + _REQUEST,
    "base64_data_in_a_frame": b"\0\xff\0\0\xff" + encoded(packed(completion())),
    "unknown_fields": encoded(request_with(tenant={"a": [1, 2.5, None]}, note="n")),
    "unknown_attributes": encoded(request(traceparent="00-abc-01", datacontenttype="application/json")),
    "only_required_fields": encoded(request(data={"request_id": "r", "model": "m"})),
    "null_optional_fields": encoded(request_with(user_id=None, region=None, content_hash=None)),
    "empty_optional_field": encoded(request_with(user_id="")),
    "null_tokens": encoded(completion(input_tokens=None, output_tokens=None, cached_tokens=None)),
    "without_tokens": encoded(completion(input_tokens=REMOVED, output_tokens=REMOVED, cached_tokens=REMOVED)),
    "most_tokens": encoded(completion(input_tokens=10**10)),
    "minus_zero_tokens": encoded(completion()).replace(b'"cached_tokens":0', b'"cached_tokens":-0'),
    "cancelled": encoded(completion(status="cancelled", usage_source="partial")),
    "integer_latency": encoded(completion(latency_ms=12)),
    "latency_with_exponent": encoded(completion()).replace(b"812.5", b"8.125E+2"),
    "a_completion_field_in_a_request_is_unknown": encoded(request_with(input_tokens="many", status=7)),
    "white_space": b" \t\r\n" + json.dumps(request(), indent=2).encode() + b"\r\n\t ",
    "escaped_text": encoded(request_with(user_id='a"b\\c/d\b\f\n\r\t')),
    "escaped_keys": _REQUEST.replace(b'"model"', b'"\\u006dodel"'),
    "surrogate_pair": _REQUEST.replace(b"user-1", b"\\ud83d\\ude00"),
    "unescaped_unicode": json.dumps(request_with(user_id="Zoë 😀 漢字"), ensure_ascii=False).encode(),
    "backslash_u0000_is_text": _REQUEST.replace(b"user-1", b"C:\\\\u0000"),
    "numeric_text": encoded(request(id="17", subject="42")),
    "text_like_json": encoded(request_with(user_id="null", api_key_id="true", region="[1]", route='{"a":1}')),
    "huge_number_in_unknown_field": _REQUEST.replace(b'"region"', b'"x":1e400,"y":' + b"9" * 400 + b',"region"'),
    "null_senttime": encoded(request(senttime=None)),
    "senttime": encoded(request(senttime="2026-07-01T11:59:59.900Z", recordedtime="not a time")),
    "lowercase_time": encoded(request(time="2026-07-01t11:59:59z")),
    "time_with_offset": encoded(request(time="2026-07-01T17:29:59+05:30")),
    "time_with_unknown_offset": encoded(request(time="2026-07-01T11:59:59-00:00")),
    "time_in_nanoseconds": encoded(request(time="2026-07-01T11:59:59.123456789Z")),
    "time_33_days_ago": encoded(request(time="2026-05-29T12:00:00Z")),
    "sequence": encoded(request(sequence=0, sourceepoch="boot-1")),
    "highest_sequence": encoded(request(sequence=10**18 - 1)),
    "sequence_as_text": encoded(request(sequence="000123", sourceepoch=7)),
    "longest_name": encoded(request(id="i" * 512)),
    "nested_900_levels": _nested(900),
    "as_large_as_the_broker_takes": filled(RECORD_BYTES - ROOM_BYTES),
}

GOOD_DOCUMENTS = [GoodDocument(name, value) for name, value in _VALID.items()]
