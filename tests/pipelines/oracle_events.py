"""An independent reader of events: Python's own JSON made strict, and the contract written down a second time."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

CONTROLS = {chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]}
REQUEST_TEXTS = ["user_id", "api_key_id", "operation", "route", "region", "content_hash"]


class Refused(Exception):
    """A document that is not one strict JSON object."""


def reason_of(value: bytes, received_at: datetime) -> str | None:
    """Why an event is rejected, or None; for events of trusted sources and the default accept window."""
    try:
        event = _document(value)
    except Refused as refused:
        return str(refused)
    return _envelope(event) or _data(event) or _window(event, received_at)


def _document(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("not_utf8") from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise Refused("nul_character")
    try:
        event = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
        # A lone surrogate cannot be encoded.
        _texts(event).encode()
    except (ValueError, RecursionError):
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


def _texts(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(key + _texts(member) for key, member in value.items())
    if isinstance(value, list):
        return "".join(map(_texts, value))
    return value if isinstance(value, str) else ""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value.encode()) <= 512


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str) or len(value) < 20 or value[10] not in "Tt" or "\n" in value:
        return None
    if value[-1] not in "Zz" and (value[-6] not in "+-" or value[-3] != ":"):
        return None
    try:
        time = datetime.fromisoformat(value.upper())
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _envelope(event: dict[str, Any]) -> str | None:
    if event.get("specversion") != "1.0":
        return "invalid_specversion"
    for name in ("id", "source", "type"):
        if not _is_name(event.get(name)) or CONTROLS & set(event[name]):
            return f"invalid_{name}"
    subject = event.get("subject")
    if subject is None and event["type"] != "source.heartbeat.v1":
        return "missing_subject"
    if subject is not None and (not _is_name(subject) or CONTROLS & set(subject)):
        return "invalid_subject"
    if _time(event.get("time")) is None:
        return "invalid_time"
    return "invalid_senttime" if event.get("senttime") is not None and _time(event["senttime"]) is None else None


def _data(event: dict[str, Any]) -> str | None:
    family = event["type"].removeprefix("ai.inference.").removesuffix(".v1")
    if event["type"] != f"ai.inference.{family}.v1" or family not in {"request", "completion", "usage"}:
        return None
    data = event.get("data")
    if not isinstance(data, dict) or event.get("data_base64") is not None:
        return "invalid_data"
    if not _is_name(data.get("request_id")):
        return "invalid_request_id"
    return (_request(data) if family != "completion" else None) or (_completion(data) if family != "request" else None)


def _request(data: dict[str, Any]) -> str | None:
    if not _is_name(data.get("model")):
        return "invalid_model"
    texts = [data[name] for name in REQUEST_TEXTS if data.get(name) is not None]
    return None if all(isinstance(text, str) and len(text.encode()) <= 512 for text in texts) else "invalid_data"


def _completion(data: dict[str, Any]) -> str | None:
    tokens = [data[name] for name in ("input_tokens", "output_tokens", "cached_tokens") if data.get(name) is not None]
    latency = data.get("latency_ms")
    is_number = _is_integer(latency) or isinstance(latency, float)
    problems = {
        "invalid_status": data.get("status") not in ("completed", "cancelled", "error"),
        "invalid_usage_source": data.get("usage_source") not in (None, "provider", "estimated", "partial"),
        "invalid_tokens": not all(_is_integer(count) and 0 <= count <= 10**10 for count in tokens),
        "invalid_cached": data.get("cached") not in (None, True, False) or _is_integer(data.get("cached")),
        "invalid_latency": latency is not None
        and not (is_number and math.isfinite(latency) and 0 <= latency <= 10**12),
    }
    return next((reason for reason, holds in problems.items() if holds), None)


def _window(event: dict[str, Any], received_at: datetime) -> str | None:
    occurred_at = _time(event["time"])
    assert occurred_at is not None
    if occurred_at < received_at - timedelta(days=35):
        return "too_old"
    return "future" if occurred_at > received_at + timedelta(minutes=5) else None
