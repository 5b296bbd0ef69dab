"""When it is received: in another order, late, after grace, outside the accept window, by a wrong clock."""

from __future__ import annotations

from dataclasses import replace

from traffic import events
from traffic.instants import rfc3339
from traffic.placement import Placement
from traffic.scenarios.plain import alone, either, matched, single
from traffic.script import Script

HOUR_MS = 3_600_000
BEFORE_PRICES_CHANGED_MS = 3_000_000, 4_500_000


def out_of_order(script: Script) -> None:
    """The completion is there before its request."""
    call = script.take()
    ended_ms = script.timeline.sent_at(call.ended_ms)
    asked_ms = ended_ms + script.rng.randint(1, min(15_000, script.placement.apart(call.model).most_ms))
    completion = events.completion(call)
    script.send(completion, ended_ms, "out_of_order")
    script.send(events.request(call), asked_ms, "out_of_order")
    matched(script, call, completion, asked_ms)


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
    call, sent_ms = script.take_straggling()
    alone(script, call, sent_ms, "abandoned_straggler")


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


def has_devices(placement: Placement) -> bool:
    """Whether clocks of devices are corrected, and it is certain what they come to."""
    return placement.policy.is_device("device/1") and not placement.policy.bills_latest_of_devices


def device(script: Script) -> None:
    """A device whose clock is hours wrong and that says when it sent; sometimes it was offline for a while.

    What it sends again is a duplicate, whatever its clock says.
    """
    call, at_ms = script.take_from_device(long_ago=script.rng.random() < 0.2)
    wrong_ms = script.rng.choice((-1, 1)) * script.rng.randint(HOUR_MS, 9 * HOUR_MS)
    wrong = replace(call, started_ms=call.started_ms + wrong_ms, ended_ms=call.ended_ms + wrong_ms)
    for document in (events.request(wrong), events.completion(wrong)):
        document["senttime"] = rfc3339(at_ms + wrong_ms)
        script.send(document, at_ms, "device_clock")
    if script.rng.random() < 0.2:
        script.send(document, at_ms + script.rng.randint(1, 15_000), "device_repeat", "duplicate")
    script.expect(call, "matched", call.ended_ms, at_ms, events.reported(call, document))
    script.was_active(call, call.started_ms, moving=True)
