"""The shapes of the corpus, and the valid events from which its documents are made by breaking one thing."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

RECEIVED_AT = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
"""When a test receives the corpus, unless it moves it with `dated`."""

OCCURRED = "2026-07-01T11:59:59.250Z"
REMOVED = object()
"""As the value of `event`: take the member away."""


@dataclass(frozen=True)
class GoodDocument:
    """A payload that must be accepted; None is a tombstone."""

    name: str
    value: bytes | None


@dataclass(frozen=True)
class BadDocument(GoodDocument):
    """A payload that must be rejected, and why."""

    reason: str


D = TypeVar("D", bound=GoodDocument)
_DAY = re.compile(rb"2026-(?:05|06|07)-(?:0[1-9]|1\d|2\d|30)(?=T)")


def dated(document: D, received_at: datetime) -> D:
    """The document as if made on the day before `received_at`, so that it keeps its fate and its length.

    Only the days of 2026 are moved, and every fate in the corpus is more than a day from the border that decides it.
    """
    shift = (received_at - RECEIVED_AT) // timedelta(days=1) * timedelta(days=1)

    def moved(match: re.Match[bytes]) -> bytes:
        day = date.fromisoformat(match[0].decode()) + shift
        return day.isoformat().encode()

    value = document.value
    return replace(document, value=None if value is None else _DAY.sub(moved, value))


def request(**members: Any) -> dict[str, Any]:
    """A valid `request.v1`, with members of its envelope set or (REMOVED) taken away."""
    data = {
        "request_id": "req-1",
        "user_id": "user-1",
        "api_key_id": "key-1",
        "model": "small-2",
        "operation": "chat",
        "route": "/v1/chat",
        "region": "eu-1",
    }
    return _changed(_envelope("ai.inference.request.v1", data), members)


def completion(**fields: Any) -> dict[str, Any]:
    """A valid `completion.v1`, with fields of its data set or (REMOVED) taken away."""
    data = {
        "request_id": "req-1",
        "status": "completed",
        "input_tokens": 120,
        "output_tokens": 40,
        "cached_tokens": 0,
        "cached": False,
        "usage_source": "provider",
        "latency_ms": 812.5,
    }
    return _envelope("ai.inference.completion.v1", _changed(data, fields))


def request_with(**fields: Any) -> dict[str, Any]:
    """A valid `request.v1`, with fields of its data set or (REMOVED) taken away."""
    event = request()
    return {**event, "data": _changed(event["data"], fields)}


def encoded(event: Any) -> bytes:
    """An event as its producer would send it."""
    return json.dumps(event, separators=(",", ":")).encode()


def _envelope(event_type: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "event-1",
        "source": "gateway/1",
        "type": event_type,
        "subject": "acme",
        "time": OCCURRED,
        "data": data,
    }


def _changed(members: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**members, **changes}.items() if value is not REMOVED}


def packed(event: dict[str, Any]) -> dict[str, Any]:
    """An event with its data in base64 (CloudEvents' JSON format, 3.1)."""
    rest = {name: member for name, member in event.items() if name != "data"}
    return {**rest, "data_base64": base64.b64encode(json.dumps(event["data"]).encode()).decode()}


def in_binary_mode(event: dict[str, Any]) -> tuple[list[tuple[str, bytes | None]], bytes | None]:
    """The headers and the value of an event in CloudEvents' binary mode over Kafka; its attributes must be texts."""
    attributes = {name: value for name, value in event.items() if name not in ("data", "datacontenttype")}
    kind: Any = event.get("datacontenttype", "application/json")
    headers: list[tuple[str, bytes | None]] = [("content-type", kind.encode())]
    headers += [(f"ce_{name}", None if value is None else value.encode()) for name, value in attributes.items()]
    return headers, json.dumps(event["data"]).encode() if "data" in event else None
