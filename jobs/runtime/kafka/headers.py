"""The headers of a record as one text, which all readers of a topic give alike: what Spark's `to_json` makes of them.

`[{"key":"ce_id","value":"NDI="}]`: values in base64, and none of a header without a value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable

import pyarrow as pa

COLUMN = "record_headers"
FIELD = pa.field(COLUMN, pa.string())
"""Null: a record has none."""
MAX_BYTES = 1 << 16
"""Of all names and values of a record; more are not kept."""
SPECVERSION, CONTENT_TYPE = "ce_specversion", "content-type"
Headers = tuple[tuple[str, bytes | None], ...]

_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|.)")

AS_TEXT = f"to_json(headers) AS {COLUMN}"
"""The same, as a column of Spark's Kafka source."""


def text_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """The text of some headers, in their order; null of none."""
    members = [
        {"key": name} if value is None else {"key": name, "value": base64.b64encode(value).decode()}
        for name, value in headers
    ]
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":")) if members else None
    # Java writes the digits of an escaped control character in capitals.
    return _ESCAPE.sub(_as_java, text) if text and "\\u" in text else text


def _as_java(escape: re.Match[str]) -> str:
    return f"\\u{escape[1].upper()}" if escape[1] else escape[0]


def headers_of(text: str | None) -> Headers:
    """The headers of a text."""
    unpacked, members = binascii.a2b_base64, json.loads(text or "[]")
    return tuple(
        (member["key"], unpacked(member["value"]) if member.get("value") is not None else None) for member in members
    )


def size_bytes(headers: Headers) -> int:
    """Of all names and values."""
    return sum(len(name.encode(errors="replace")) + len(value or b"") for name, value in headers)


def has_structured_type(name: str, value: bytes | None) -> bool:
    """Whether a header says that the value is a whole event (CloudEvents' Kafka binding, 3): a content-type that names
    a format of CloudEvents, of no more than MAX_BYTES.
    """
    is_type = name.lower() == CONTENT_TYPE and value is not None and len(value) <= MAX_BYTES
    return is_type and (value or b"").strip().lower().startswith(b"application/cloudevents")
