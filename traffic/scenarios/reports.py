"""Several reports of one call, and calls that failed: the best report bills, whichever came first."""

from __future__ import annotations

from dataclasses import replace

from traffic import events
from traffic.meters import REASONING
from traffic.placement import Placement
from traffic.scenarios.plain import matched, single
from traffic.script import Script

MAX_APART_MS = 15_000


def can_be_ranked(placement: Placement) -> bool:
    """Whether the stack bills the best report of a call."""
    return placement.policy.best_report_bills


def failed(script: Script) -> None:
    """A call that failed, and was not tried again: it waits for a better report as long as its request would."""
    call = script.take(at_most_lag_ms=script.placement.included(alone=True).most_ms - 1)
    call = replace(call, status="error")
    sent_ms, document = script.timeline.sent_at(call.ended_ms), events.usage(call)
    script.send(document, sent_ms, "failed")
    script.expect(call, "matched", call.ended_ms, sent_ms, events.reported(call, document), waits=True)
    script.was_active(call, call.ended_ms)


def retried(script: Script) -> None:
    """A call that failed on one model and was answered by another: the answer bills."""
    call = script.take()
    other = script.rng.choice(script.catalog.models)
    error = replace(call, model=other, status="error", ended_ms=call.ended_ms - 1, used=dict.fromkeys(call.used))
    sent_ms = script.timeline.sent_at(call.ended_ms)
    most_ms = min(MAX_APART_MS, *(script.placement.apart(model).most_ms for model in (call.model, other)))
    script.send({**events.usage(error), "id": f"{call.request_id}.u1"}, sent_ms, "retried")
    script.expect(error, "superseded", error.ended_ms, sent_ms)
    script.was_active(error, error.ended_ms)
    single(script, call, "retried", sent_ms + script.rng.randint(1, most_ms))


def streamed(script: Script) -> None:
    """A call whose gateway counts while the answer streams, before the provider's count comes: that one bills."""
    call = script.take()
    so_far = {**call.used, "output_tokens": 1, REASONING: 0}
    partial = replace(call, ended_ms=call.ended_ms - 1, used=so_far)
    asked_ms, ended_ms = script.timeline.sent_at(call.started_ms), script.timeline.sent_at(call.ended_ms)
    script.send(events.request(call), asked_ms, "streamed")
    document = events.completion(partial)
    counted = {**document["data"], "usage_source": "partial"}
    script.send({**document, "id": f"{call.request_id}.c1", "data": counted}, ended_ms, "streamed")
    script.expect(partial, "superseded", partial.ended_ms, ended_ms)
    completion = events.completion(call)
    most_ms = min(MAX_APART_MS, script.placement.apart(call.model).most_ms)
    ended_ms += script.rng.randint(1, most_ms)
    script.send(completion, ended_ms, "streamed")
    matched(script, call, completion, ended_ms)
