"""What a call sends when nothing is wrong, of which every kind of trouble is made."""

from __future__ import annotations

from traffic import events
from traffic.events import Call, Document
from traffic.script import Script


def pair(script: Script, call: Call, kind: str, sent_ms: int | None = None) -> tuple[Document, Document, int]:
    """Request and completion; both at one instant, or each as the timeline has it. The instant of the last."""
    request, completion = events.request(call), events.completion(call)
    asked_ms = script.timeline.sent_at(call.started_ms) if sent_ms is None else sent_ms
    ended_ms = script.timeline.sent_at(call.ended_ms) if sent_ms is None else sent_ms
    script.send(request, asked_ms, kind)
    script.send(completion, ended_ms, kind)
    matched(script, call, completion, ended_ms)
    return request, completion, ended_ms


def single(script: Script, call: Call, kind: str, sent_ms: int | None = None) -> tuple[Document, int]:
    """One usage event, and the instant of sending."""
    document = events.usage(call)
    at_ms = script.timeline.sent_at(call.ended_ms) if sent_ms is None else sent_ms
    script.send(document, at_ms, kind)
    script.expect(call, "matched", call.ended_ms, at_ms, events.reported(call, document))
    script.was_active(call, call.ended_ms, beyond_us=call.beyond_us)
    return document, at_ms


def matched(script: Script, call: Call, completion: Document, sent_ms: int) -> None:
    """A request whose completion came: billed at the completion's time, active at the request's."""
    script.expect(call, "matched", call.ended_ms, sent_ms, events.reported(call, completion))
    script.was_active(call, call.started_ms)


def either(script: Script, call: Call, kind: str, sent_ms: int | None = None) -> None:
    """A pair or a single event."""
    if script.rng.random() < 0.7:
        pair(script, call, kind, sent_ms)
    else:
        single(script, call, kind, sent_ms)


def alone(script: Script, call: Call, sent_ms: int, kind: str) -> None:
    """A request whose completion never comes."""
    script.send(events.request(call), sent_ms, kind)
    script.expect(call, "abandoned", call.started_ms, sent_ms)
    script.was_active(call, call.started_ms)


def normal(script: Script) -> None:
    """Nothing is wrong."""
    either(script, script.take(), "normal")
