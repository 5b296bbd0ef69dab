"""The kinds of trouble. Each scenario sends the records of one call and writes down what must come of them."""

from __future__ import annotations

from dataclasses import replace

from traffic import events
from traffic.catalog import UNPRICED_MODEL
from traffic.events import Call, Document
from traffic.instants import rfc3339
from traffic.meters import METERS, REPORTED
from traffic.script import Script

NOTHING = (0,) * len(METERS)
HOUR_MS = 3_600_000
BEFORE_PRICES_CHANGED_MS = 3_000_000, 4_500_000


def pair(script: Script, call: Call, kind: str, sent_ms: int | None = None) -> tuple[Document, Document, int]:
    """Request and completion; both at one instant, or each as the timeline has it. The instant of the last."""
    request, completion = events.request(call), events.completion(call)
    asked_ms = script.timeline.sent_at(call.started_ms) if sent_ms is None else sent_ms
    ended_ms = script.timeline.sent_at(call.ended_ms) if sent_ms is None else sent_ms
    script.send(request, asked_ms, kind)
    script.send(completion, ended_ms, kind)
    matched(script, call, ended_ms)
    return request, completion, ended_ms


def single(script: Script, call: Call, kind: str, sent_ms: int | None = None) -> tuple[Document, int]:
    """One usage event, and the instant of sending."""
    document = events.usage(call)
    at_ms = script.timeline.sent_at(call.ended_ms) if sent_ms is None else sent_ms
    script.send(document, at_ms, kind)
    script.expect(call, "matched", call.ended_ms, at_ms, call.quantities)
    script.was_active(call, call.ended_ms)
    return document, at_ms


def matched(script: Script, call: Call, sent_ms: int) -> None:
    """A request whose completion came: billed at the completion's time, active at the request's."""
    script.expect(call, "matched", call.ended_ms, sent_ms, call.quantities)
    script.was_active(call, call.started_ms)


def either(script: Script, call: Call, kind: str, sent_ms: int | None = None) -> None:
    """A pair or a single event."""
    if script.rng.random() < 0.7:
        pair(script, call, kind, sent_ms)
    else:
        single(script, call, kind, sent_ms)


def normal(script: Script) -> None:
    """Nothing is wrong."""
    either(script, script.take(), "normal")


def exact_duplicate(script: Script) -> None:
    """The same bytes again, at once or some seconds later."""
    _, completion, at_ms = pair(script, script.take(), "normal")
    for _ in range(script.rng.choice((1, 1, 1, 3))):
        at_ms += script.rng.choice((1, 5, script.rng.randint(100, 15_000)))
        script.send(completion, at_ms, "exact_duplicate", "duplicate")


def resent_duplicate(script: Script) -> None:
    """Sent again with another `senttime`, or written in another order: the content is the same."""
    request, _, at_ms = pair(script, script.take(), "normal")
    at_ms += script.rng.randint(100, 15_000)
    again = {**dict(reversed(request.items())), "senttime": rfc3339(at_ms)}
    script.send(again, at_ms, "resent_duplicate", "duplicate")


def conflict(script: Script) -> None:
    """The same identity with other content; the first stands."""
    document, at_ms = single(script, script.take(), "normal")
    tokens = (document["data"]["output_tokens"] or 0) + script.rng.randint(1, 900)
    other = {**document, "data": {**document["data"], "output_tokens": tokens}}
    script.send(other, at_ms + script.rng.randint(1, 15_000), "conflict", "conflict")


def out_of_order(script: Script) -> None:
    """The completion is there before its request."""
    call = script.take()
    ended_ms = script.timeline.sent_at(call.ended_ms)
    asked_ms = ended_ms + script.rng.randint(1, min(15_000, script.placement.apart(call.model).most_ms))
    script.send(events.completion(call), ended_ms, "out_of_order")
    script.send(events.request(call), asked_ms, "out_of_order")
    matched(script, call, asked_ms)


def late(script: Script) -> None:
    """Received well after its window ended, within grace."""
    call, sent_ms = script.take_lagging(script.placement.certainly_late())
    either(script, call, "late", sent_ms)


def straggler(script: Script) -> None:
    """Received well after its window's grace: of this session, or of the one before the prices changed."""
    near_ms, far_ms = script.near_past()
    if script.rng.random() < 0.5 and near_ms <= BEFORE_PRICES_CHANGED_MS[0]:
        near_ms, far_ms = BEFORE_PRICES_CHANGED_MS
    start_ms = script.timeline.start_ms
    call, sent_ms = script.take_between(start_ms - far_ms, start_ms - near_ms)
    either(script, call, "straggler", sent_ms)


def abandoned_straggler(script: Script) -> None:
    """A request from long ago whose completion never comes."""
    start_ms = script.timeline.start_ms
    near_ms, far_ms = script.near_past()
    call, sent_ms = script.take_between(start_ms - far_ms, start_ms - near_ms)
    _alone(script, call, sent_ms, "abandoned_straggler")


def old(script: Script) -> None:
    """From almost as long ago as is accepted."""
    call, sent_ms = script.take_lagging(script.placement.old())
    single(script, call, "old", sent_ms)


def early(script: Script) -> None:
    """A little ahead of its time, and accepted."""
    call, sent_ms = script.take_lagging(script.placement.early())
    single(script, call, "early", sent_ms)


def future(script: Script) -> None:
    """Too far ahead of its time."""
    call, sent_ms = script.take_lagging(script.placement.future())
    script.send(events.usage(call), sent_ms, "future", "rejected", "future")


def too_old(script: Script) -> None:
    """Older than is accepted."""
    call, sent_ms = script.take_lagging(script.placement.too_old())
    script.send(events.usage(call), sent_ms, "too_old", "rejected", "too_old")


def device(script: Script) -> None:
    """A device whose clock is hours wrong and that says when it sent; sometimes it was offline for a while."""
    call, at_ms = script.take_from_device(long_ago=script.rng.random() < 0.2)
    wrong_ms = script.rng.choice((-1, 1)) * script.rng.randint(HOUR_MS, 9 * HOUR_MS)
    wrong = replace(call, started_ms=call.started_ms + wrong_ms, ended_ms=call.ended_ms + wrong_ms)
    for document in (events.request(wrong), events.completion(wrong)):
        script.send({**document, "senttime": rfc3339(at_ms + wrong_ms)}, at_ms, "device_clock")
    script.expect(call, "matched", call.ended_ms, at_ms, call.quantities)
    script.was_active(call, call.started_ms, moving=True)


def abandoned(script: Script) -> None:
    """A request whose completion never comes; sometimes sent twice under two event ids."""
    call = script.take(at_most_lag_ms=script.placement.included(alone=True).most_ms - 1)
    sent_ms = script.timeline.sent_at(call.started_ms)
    _alone(script, call, sent_ms, "abandoned")
    if script.rng.random() < 0.2:
        at_ms = sent_ms + script.rng.randint(1, 5_000)
        script.send({**events.request(call), "id": f"{call.request_id}.q2"}, at_ms, "superseded_request")
        script.expect(call, "superseded", call.started_ms, at_ms, NOTHING)
        script.was_active(call, call.started_ms)


def _alone(script: Script, call: Call, sent_ms: int, kind: str) -> None:
    script.send(events.request(call), sent_ms, kind)
    script.expect(call, "abandoned", call.started_ms, sent_ms, (1, *[None] * len(REPORTED)))
    script.was_active(call, call.started_ms)


def orphaned(script: Script) -> None:
    """A completion whose request never comes: no model, no price."""
    call = script.take(at_most_lag_ms=script.placement.included(alone=True).most_ms - 1)
    sent_ms = script.timeline.sent_at(call.ended_ms)
    script.send(events.completion(call), sent_ms, "orphaned")
    script.expect(call, "orphaned", call.ended_ms, sent_ms, (0, *call.quantities[1:]))


def superseded_request(script: Script) -> None:
    """Two requests of one key under two event ids: the first counts."""
    call = script.take()
    _, _, at_ms = pair(script, call, "normal")
    other = replace(call, model=script.rng.choice(script.catalog.models))
    at_ms += script.rng.randint(1, 9_000)
    script.send({**events.request(other), "id": f"{call.request_id}.q2"}, at_ms, "superseded_request")
    script.expect(other, "superseded", call.started_ms, at_ms, NOTHING)
    script.was_active(call, call.started_ms)


def superseded_completion(script: Script) -> None:
    """Two completions of one key: the first counts."""
    call = script.take()
    _, _, at_ms = pair(script, call, "normal")
    used = {**call.used, "output_tokens": (call.used["output_tokens"] or 0) + 1_000}
    other = replace(call, used=used, status="error")
    at_ms += script.rng.randint(1, 9_000)
    script.send({**events.completion(other), "id": f"{call.request_id}.c2"}, at_ms, "superseded_completion")
    script.expect(call, "superseded", call.ended_ms, at_ms, NOTHING)


def superseded_usage(script: Script) -> None:
    """A gateway that reports one call twice under two event ids: the first counts."""
    call = script.take()
    document, at_ms = single(script, call, "normal")
    at_ms += script.rng.randint(1, 9_000)
    script.send({**document, "id": f"{call.request_id}.u2"}, at_ms, "superseded_usage")
    script.expect(call, "superseded", call.ended_ms, at_ms, NOTHING)
    script.was_active(call, call.ended_ms)


def null_tokens(script: Script) -> None:
    """The gateway does not know what was used: null is not 0, and not billed."""
    call = script.take()
    known = script.rng.choice((None, 0, call.used["output_tokens"]))
    used = {**dict.fromkeys(call.used), "output_tokens": known}
    either(script, replace(call, used=used), "null_tokens")


def unpriced_model(script: Script) -> None:
    """A model that has no price: emitted at once, without an amount."""
    either(script, script.take(model=UNPRICED_MODEL), "unpriced_model")


def unknown_account(script: Script) -> None:
    """An account that the catalog does not have: billed to nobody, without currency and amount, until it is known."""
    call = script.take()
    either(script, replace(call, account=script.catalog.unknown_account, user=None), "unknown_account")


def usage_completes_request(script: Script) -> None:
    """A gateway that announces a call, and reports it in one event when it is over: request and completion."""
    call = script.take()
    ended_ms = script.timeline.sent_at(call.ended_ms)
    script.send(events.request(call), script.timeline.sent_at(call.started_ms), "usage_completes_request")
    # In the order of sending, where both are sent in one millisecond.
    script.send(events.usage(call), ended_ms + 1, "usage_completes_request")
    matched(script, call, ended_ms + 1)
    script.was_active(call, call.ended_ms)


def usage_after_completion(script: Script) -> None:
    """A completion, and then the call in one event: that is its request, and what the completion says counts."""
    call = script.take()
    ended_ms = script.timeline.sent_at(call.ended_ms)
    again_ms = ended_ms + script.rng.randint(1, min(15_000, script.placement.apart(call.model).most_ms))
    script.send(events.completion(call), ended_ms, "usage_after_completion")
    script.send(events.usage(replace(call, used={**call.used, "output_tokens": 1})), again_ms, "usage_after_completion")
    script.expect(call, "matched", call.ended_ms, again_ms, call.quantities)
    script.was_active(call, call.ended_ms)


def unknown_type(script: Script) -> None:
    """A type that Weir gives no meaning: kept and counted."""
    call = script.take()
    script.send(events.unknown(call), script.timeline.sent_at(call.ended_ms), "unknown_type")


def quiet_source(script: Script) -> None:
    """A source that shows signs of life in the first moments and then is silent."""
    start_ms, rng = script.timeline.start_ms, script.rng
    at_ms = start_ms + rng.randint(0, max(1, script.timeline.duration_ms // 5))
    source = f"gateway-quiet/{script.catalog.tag}"
    script.send(events.heartbeat(source, len(script.records), at_ms), at_ms, "quiet_source")
