"""The CloudEvents of the traffic, as documents and as bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from traffic.instants import rfc3339
from traffic.meters import REPORTED, Used

REQUEST = "ai.inference.request.v1"
COMPLETION = "ai.inference.completion.v1"
COMPLETION_V2 = "ai.inference.completion.v2"
USAGE = "ai.inference.usage.v1"
UNKNOWN = "ai.inference.feedback.v1"
HEARTBEAT = "source.heartbeat.v1"

ZONE_MINUTES = {"gateway-ap": 330, "gateway-us": -420}
"""Gateways that write local time with its offset; the others write UTC."""
SPEAKS_V2 = "gateway-ap"
"""The gateway whose completions are of the second version."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One use of the API: who asked which model, when it began and ended, and what was used.

    It ended `beyond_us` microseconds (below a thousand) after `ended_ms`: no border lies between two milliseconds.
    """

    account: str
    user: str | None
    model: str
    source: str
    request_id: str
    started_ms: int
    ended_ms: int
    status: str
    operation: str
    used: Used
    beyond_us: int = 0

    @property
    def quantities(self) -> tuple[int | None, ...]:
        """Units per meter, in the order of `METERS`."""
        return (1, *(self.used[name] for name in REPORTED))


def encoded(document: Document) -> bytes:
    """The document as it is sent."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def request(call: Call) -> Document:
    """The request of a call."""
    return _document(call, REQUEST, _time(call.source, call.started_ms), "q", _asked(call))


def completion(call: Call) -> Document:
    """The completion of a call."""
    at = _time(call.source, call.ended_ms, call.beyond_us)
    if _gateway(call.source) == SPEAKS_V2:
        return _document(call, COMPLETION_V2, at, "c", {"request_id": call.request_id, **_used_by_v2(call)})
    return _document(call, COMPLETION, at, "c", {"request_id": call.request_id, **_used(call)})


def usage(call: Call) -> Document:
    """Both in one, for gateways that report once."""
    return _document(
        call, USAGE, _time(call.source, call.ended_ms, call.beyond_us), "u", {**_asked(call), **_used(call)}
    )


def heartbeat(source: str, number: int, at_ms: int) -> Document:
    """A sign of life."""
    return _envelope(HEARTBEAT, source, f"beat-{number}", _time(source, at_ms), {})


def unknown(call: Call) -> Document:
    """A type that Weir gives no meaning."""
    return _document(call, UNKNOWN, _time(call.source, call.ended_ms), "f", {"request_id": call.request_id, "stars": 4})


def _document(call: Call, kind: str, time: str, suffix: str, data: Document) -> Document:
    return {**_envelope(kind, call.source, f"{call.request_id}.{suffix}", time, data), "subject": call.account}


def _time(source: str, at_ms: int, beyond_us: int = 0) -> str:
    return rfc3339(at_ms, ZONE_MINUTES.get(_gateway(source), 0), beyond_us)


def _gateway(source: str) -> str:
    return source.split("/", maxsplit=1)[0]


def _envelope(kind: str, source: str, event_id: str, time: str, data: Document) -> Document:
    return {
        "specversion": "1.0",
        "type": kind,
        "source": source,
        "id": event_id,
        "time": time,
        "datacontenttype": "application/json",
        "data": data,
    }


def _asked(call: Call) -> Document:
    data = {
        "request_id": call.request_id,
        "user_id": call.user,
        "api_key_id": f"key-{call.account}",
        "model": call.model,
        "operation": call.operation,
        "route": "/v1/chat/completions",
        "region": _gateway(call.source),
    }
    if call.user is None:
        del data["user_id"]
    return data


def _used(call: Call) -> Document:
    return {
        "status": call.status,
        **call.used,
        "usage_source": "provider" if call.status == "completed" else "partial",
        "latency_ms": call.ended_ms - call.started_ms,
    }


def _used_by_v2(call: Call) -> Document:
    """The same, with the tokens in an object and without their unit."""
    used = {name: units for name, units in _used(call).items() if name not in call.used}
    return {**used, "usage": {name.removesuffix("_tokens"): units for name, units in call.used.items()}}
