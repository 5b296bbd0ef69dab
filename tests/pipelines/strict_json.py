"""Python's own JSON made as strict as events must be."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

from tests.pipelines.deep_json import deep, levels_of

MAX_LEVELS = 999


class Refused(Exception):
    """A document that is not one strict JSON object."""


def document(value: bytes | None) -> dict[str, Any]:
    """A payload as one strict JSON object. Raises Refused."""
    if value is None:
        raise Refused("malformed")
    event = _object(value[5:] if value[:1] == b"\0" and value[5:].lstrip(b" \t\r\n")[:1] == b"{" else value)
    return _unpacked(event)


def _unpacked(event: dict[str, Any]) -> dict[str, Any]:
    """An event whose data is JSON in base64, as the one that has it as it is."""
    kind = event.get("datacontenttype")
    is_json = kind is None or (
        isinstance(kind, str) and re.fullmatch(r"(?i)\s*((application|text)/json|.*\+json|)\s*(;.*)?", kind)
    )
    if not isinstance(event.get("data_base64"), str) or event.get("data") is not None or not is_json:
        return event
    try:
        text = b64decode(event["data_base64"], validate=True).decode("utf-8")
        deep(lambda: json.loads(text, object_pairs_hook=_unique, parse_constant=_constant, parse_int=_int))
    except ValueError:
        return event
    data = _object(b'{"data":' + text.encode() + b"}")["data"]
    return {**event, "data": data, "data_base64": None}


def _object(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("not_utf8") from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise Refused("nul_character")
    try:
        if levels_of(text) > MAX_LEVELS:
            raise ValueError("too deep")
        event = deep(lambda: json.loads(text, object_pairs_hook=_unique, parse_constant=_constant, parse_int=_int))
        # A lone surrogate cannot be encoded.
        deep(lambda: _texts(event)).encode()
    except ValueError:
        raise Refused("malformed") from None
    if not isinstance(event, dict):
        raise Refused("malformed")
    return event


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a duplicate key")
    return dict(pairs)


def _constant(name: str) -> None:
    raise ValueError(name)


def _int(digits: str) -> int:
    # Python turns no longer text into a number; whatever has so many digits is above every limit.
    return int(digits[:1_000])


def _texts(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(key + _texts(member) for key, member in value.items())
    if isinstance(value, list):
        return "".join(map(_texts, value))
    return value if isinstance(value, str) else ""
