"""Documents that are no events, one function a kind. Each starts from a valid usage event of its own identity.

They name the account where they can, so that a mistake would show up in somebody's bill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from traffic.events import Document, encoded

Damage = Callable[[Document], bytes]


def without(name: str) -> Damage:
    """An attribute is missing."""
    return lambda document: encoded({key: value for key, value in document.items() if key != name})


def attribute(name: str, value: Any) -> Damage:
    """An attribute has a value that is not allowed."""
    return lambda document: encoded({**document, name: value})


def without_data(name: str) -> Damage:
    """A field of `data` is missing."""
    return lambda document: encoded({**document, "data": {k: v for k, v in document["data"].items() if k != name}})


def data(name: str, value: Any) -> Damage:
    """A field of `data` has a value that is not allowed."""
    return lambda document: encoded({**document, "data": {**document["data"], name: value}})


def literal(name: str, text: str) -> Damage:
    """A field of `data` is written as JSON that Python would not write."""

    def damaged(document: Document) -> bytes:
        marked = encoded({**document, "data": {**document["data"], name: "\x01"}})
        return marked.replace(json.dumps("\x01").encode(), text.encode())

    return damaged


def wrapped(before: bytes, after: bytes) -> Damage:
    """Something stands around the document."""
    return lambda document: before + encoded(document) + after


KINDS: dict[str, Damage] = {
    "empty": lambda _: b"",
    "blank": lambda _: b"   ",
    "no_json": lambda document: f"POST /v1/events {document['id']}".encode(),
    "truncated": lambda document: encoded(document)[:-20],
    # One array is a batch.
    "in_array": wrapped(b"[[", b"]]"),
    "string": lambda document: json.dumps(document["id"]).encode(),
    "number": lambda _: b"1",
    "null": lambda _: b"null",
    "nested": lambda _: b"[" * 5_000,
    "two_documents": lambda document: encoded(document) + encoded({**document, "id": f"{document['id']}.second"}),
    "trailing": wrapped(b"", b"}"),
    "no_utf8": lambda document: encoded(document).replace(b'"data"', b'"note":"\xff\xfe","data"'),
    "nul": literal("user_id", '"a\\u0000b"'),
    "lone_surrogate": literal("user_id", '"a\\ud800b"'),
    "duplicate_key": lambda document: encoded(document).replace(b'{"specversion"', b'{"id":"other","specversion"'),
    "nan": literal("input_tokens", "NaN"),
    "infinity": literal("output_tokens", "Infinity"),
    "no_id": without("id"),
    "no_source": without("source"),
    "no_type": without("type"),
    "no_time": without("time"),
    "no_subject": without("subject"),
    "no_data": without("data"),
    "empty_id": attribute("id", ""),
    "number_as_id": attribute("id", 7),
    "specversion": attribute("specversion", "0.3"),
    "time_without_offset": attribute("time", "2026-05-01T12:00:00"),
    "time_in_milliseconds": attribute("time", 1_777_636_800_000),
    "impossible_time": attribute("time", "2026-02-30T12:00:00Z"),
    "data_as_text": attribute("data", "{}"),
    "no_request_id": without_data("request_id"),
    "empty_request_id": data("request_id", ""),
    "no_model": without_data("model"),
    "unknown_status": data("status", "done"),
    "negative_tokens": data("input_tokens", -1),
    "fractional_tokens": data("output_tokens", 1.5),
    "tokens_as_text": data("input_tokens", "12"),
    "huge_tokens": data("output_tokens", 10**30),
    "absurd_tokens": data("output_tokens", 10**13),
}


def kinds() -> Iterator[tuple[str, Damage]]:
    """Every kind, again and again."""
    while True:
        yield from KINDS.items()
