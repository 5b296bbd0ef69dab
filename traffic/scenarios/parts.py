"""Parts of a request that are missing, or that come twice under two event ids.

The first counts. It is also the better or the later of both, which bills where the best report does.
"""

from __future__ import annotations

from dataclasses import replace

from traffic import events
from traffic.scenarios.plain import alone, matched, pair, single
from traffic.script import Script


def abandoned(script: Script) -> None:
    """A request whose completion never comes; sometimes sent twice under two event ids."""
    call = script.take(at_most_lag_ms=script.placement.included(alone=True).most_ms - 1)
    sent_ms = script.timeline.sent_at(call.started_ms)
    alone(script, call, sent_ms, "abandoned")
    if script.rng.random() < 0.2:
        at_ms = sent_ms + script.rng.randint(1, 5_000)
        other = replace(call, started_ms=call.started_ms - 1)
        script.send({**events.request(other), "id": f"{call.request_id}.q2"}, at_ms, "superseded_request")
        script.expect(other, "superseded", other.started_ms, at_ms)
        script.was_active(other, other.started_ms)


def orphaned(script: Script) -> None:
    """A completion whose request never comes: no model, no price."""
    call = script.take(at_most_lag_ms=script.placement.included(alone=True).most_ms - 1)
    sent_ms = script.timeline.sent_at(call.ended_ms)
    completion = events.completion(call)
    script.send(completion, sent_ms, "orphaned")
    script.expect(call, "orphaned", call.ended_ms, sent_ms, events.reported(call, completion))


def superseded_request(script: Script) -> None:
    """Two requests of one key under two event ids: the first counts.

    The second one occurs after the completion: an outage may let both be received at one instant.
    """
    call = script.take()
    _, _, at_ms = pair(script, call, "normal")
    other = replace(call, model=script.rng.choice(script.catalog.models), started_ms=call.ended_ms + 1)
    at_ms += script.rng.randint(1, 9_000)
    script.send({**events.request(other), "id": f"{call.request_id}.q2"}, at_ms, "superseded_request")
    script.expect(other, "superseded", other.started_ms, at_ms)
    script.was_active(other, other.started_ms)


def superseded_completion(script: Script) -> None:
    """Two completions of one key: the first counts."""
    call = script.take()
    _, _, at_ms = pair(script, call, "normal")
    used = {**call.used, "output_tokens": (call.used["output_tokens"] or 0) + 1_000}
    other = replace(call, used=used, status="error")
    at_ms += script.rng.randint(1, 9_000)
    script.send({**events.completion(other), "id": f"{call.request_id}.c2"}, at_ms, "superseded_completion")
    script.expect(call, "superseded", call.ended_ms, at_ms)


def superseded_usage(script: Script) -> None:
    """A gateway that reports one call twice under two event ids: the first counts."""
    call = script.take()
    _, at_ms = single(script, call, "normal")
    other = replace(call, ended_ms=call.ended_ms - 1)
    at_ms += script.rng.randint(1, 9_000)
    script.send({**events.usage(other), "id": f"{call.request_id}.u2"}, at_ms, "superseded_usage")
    script.expect(other, "superseded", other.ended_ms, at_ms)
    script.was_active(other, other.ended_ms)


def usage_completes_request(script: Script) -> None:
    """A gateway that announces a call, and reports it in one event when it is over: request and completion."""
    call = script.take()
    ended_ms = script.timeline.sent_at(call.ended_ms)
    script.send(events.request(call), script.timeline.sent_at(call.started_ms), "usage_completes_request")
    # In the order of sending, where both are sent in one millisecond.
    usage = events.usage(call)
    script.send(usage, ended_ms + 1, "usage_completes_request")
    matched(script, call, usage, ended_ms + 1)
    script.was_active(call, call.ended_ms)


def usage_after_completion(script: Script) -> None:
    """A completion, and then the call in one event: that is its request, and what the completion says counts."""
    call = script.take()
    ended_ms = script.timeline.sent_at(call.ended_ms)
    again_ms = ended_ms + script.rng.randint(1, min(15_000, script.placement.apart(call.model).most_ms))
    completion = events.completion(call)
    script.send(completion, ended_ms, "usage_after_completion")
    other = replace(call, used={**call.used, "output_tokens": 1}, status="error")
    script.send(events.usage(other), again_ms, "usage_after_completion")
    script.expect(call, "matched", call.ended_ms, again_ms, events.reported(call, completion))
    script.was_active(call, call.ended_ms)
