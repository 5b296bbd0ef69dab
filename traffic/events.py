"""The CloudEvents of the traffic, as documents and as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from traffic.instants import rfc3339
from traffic.meters import CONTENT, REASONING, REPORTED, SEATS, SECONDS, STORED, USER, Used

REQUEST = "ai.inference.request.v1"
COMPLETION = "ai.inference.completion.v1"
COMPLETION_V2 = "ai.inference.completion.v2"
COMPLETION_OF_SECONDS = "com.example.completion"
USAGE = "ai.inference.usage.v1"
TRACE = "com.example.trace"
TOKENS = "com.example.tokens"
UNKNOWN = "ai.inference.feedback.v1"
REVERSAL = "ai.inference.reversal.v1"
HEARTBEAT = "source.heartbeat.v1"

ZONE_MINUTES = {"gateway-ap": 330, "gateway-us": -420}
"""Gateways that write local time with its offset; the others write UTC."""
GATEWAY_OF_SECONDS = "gateway-gpu"
SPEAKS: Mapping[str, str] = {"gateway-ap": COMPLETION_V2, GATEWAY_OF_SECONDS: COMPLETION_OF_SECONDS}
"""Gateways whose completions are of another type than the first."""
TELLS: Mapping[str, tuple[str, ...]] = {
    COMPLETION: REPORTED,
    COMPLETION_V2: (*REPORTED, REASONING),
    COMPLETION_OF_SECONDS: (*REPORTED, SECONDS, SEATS, STORED),
    USAGE: REPORTED,
    TRACE: REPORTED,
}
"""What an event tells of what was used, by its type."""

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
    content: str | None = None
    """What it was answered with, where its gateway says that of its completion."""
    api_key: str | None = None
    """The id of the key that it was called with; None: the key that most calls of its account have."""
    region: str | None = None
    """Where it was called; None: the gateway's region."""

    @property
    def latency_ms(self) -> int:
        """How long it took."""
        return self.ended_ms - self.started_ms


def encoded(document: Document) -> bytes:
    """The document as it is sent."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def request(call: Call) -> Document:
    """The request of a call."""
    return _document(call, REQUEST, _time(call.source, call.started_ms), "q", _request(call))


def completion(call: Call) -> Document:
    """The completion of a call."""
    at = _time(call.source, call.ended_ms, call.beyond_us)
    kind = SPEAKS.get(_gateway(call.source), COMPLETION)
    return _document(call, kind, at, "c", {"request_id": call.request_id, **_used(call, kind)})


def usage(call: Call) -> Document:
    """Both in one, for gateways that report once."""
    at = _time(call.source, call.ended_ms, call.beyond_us)
    return _document(call, USAGE, at, "u", {**_request(call), **_used(call, USAGE)})


def trace(run: Call, calls: Sequence[Call]) -> Document:
    """What several calls of a run used, in one event: only what is the same for all surrounds them."""
    shared = {name: value for name, value in _request(run).items() if name != "model"}
    elements = [{"model": call.model, **_used(call, TRACE)} for call in calls]
    return _document(run, TRACE, _time(run.source, run.ended_ms, run.beyond_us), "t", {**shared, "calls": elements})


def tokens(call: Call, column: str) -> Document:
    """How many tokens of one type a call used, of a gateway that names no request."""
    data = {"model": call.model, column: str(call.used[column])}
    return _document(call, TOKENS, _time(call.source, call.ended_ms, call.beyond_us), column, data)


def reversal(
    call: Call, source: str, at_ms: int, *, number: int = 1, meter: str | None = None, quantity: Decimal | None = None
) -> Document:
    """What a call bills is taken back, or of a meter all or so much; the number tells it from others of the call."""
    data: Document = {"request_id": call.request_id, "reason": f"ticket {number}"}
    if meter is not None:
        data["meter"] = meter
    if quantity is not None:
        data["quantity"] = float(quantity)  # Of so few digits JSON has each.
    document = _envelope(REVERSAL, source, f"{call.request_id}.d{number}", _time(source, at_ms), data)
    return {**document, "subject": call.account}


def reported(call: Call, document: Document) -> Used:
    """What a completion or usage event of a call tells of what it used."""
    return {name: call.used[name] for name in TELLS[document["type"]]}


def texts(call: Call, *, has_request: bool, has_response: bool) -> Mapping[str, str]:
    """What the events of a call say in texts, by column: its request, its completion, or both."""
    columns = {**(_request(call) if has_request else {}), **(_response(call) if has_response else {})}
    return {column: value for column, value in columns.items() if isinstance(value, str)}


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


def _request(call: Call) -> Document:
    data = {
        "request_id": call.request_id,
        USER: call.user,
        "api_key_id": call.api_key or f"key-{call.account}",
        "model": call.model,
        "operation": call.operation,
        "route": "/v1/chat/completions",
        "region": call.region or _gateway(call.source),
    }
    if call.user is None:
        del data[USER]
    return data


def _used(call: Call, kind: str) -> Document:
    units: Document = {name: call.used[name] for name in TELLS[kind]}
    if kind == COMPLETION_V2:  # In an object, and without their unit.
        units = {"usage": {name.removesuffix("_tokens"): tokens for name, tokens in units.items()}}
    for name in (SECONDS, STORED):
        if units.get(name) is not None:
            units[name] = float(units[name])  # Of so few digits JSON has each.
    return {**_response(call), **units, "latency_ms": call.latency_ms}


def _response(call: Call) -> Document:
    content = {} if call.content is None else {CONTENT: call.content}
    source = "provider" if call.status == "completed" else "partial"
    return {"status": call.status, "usage_source": source, **content}
