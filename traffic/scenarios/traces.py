"""Runs of agents: one event has several calls, each of which bills as if it had come alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from traffic import events, meters
from traffic.events import Call
from traffic.placement import Placement
from traffic.script import Script

MAX_CALLS = 12


def can_be_taken_apart(placement: Placement) -> bool:
    """Whether the stack has the contract that says where the calls are."""
    return placement.policy.knows_traces


def trace(script: Script) -> None:
    """A run that is reported when it ended."""
    run = script.take()
    sent_trace(script, run, script.timeline.sent_at(run.ended_ms), "trace")


def straggling_trace(script: Script) -> None:
    """A run that is reported well after its window's grace."""
    run, sent_ms = script.take_straggling()
    sent_trace(script, run, sent_ms, "straggling_trace")


def repeated_trace(script: Script) -> None:
    """The same run again, once as it was and once with its calls in another order: the first stands."""
    run = script.take()
    at_ms = script.timeline.sent_at(run.ended_ms)
    calls = sent_trace(script, run, at_ms, "repeated_trace")
    document = events.trace(run, calls)
    at_ms += script.rng.randint(1, 15_000)
    script.send(document, at_ms, "repeated_trace", "duplicate")
    other = events.trace(run, [*calls[1:], calls[0]])
    script.send(other, at_ms + script.rng.randint(1, 5_000), "reordered_trace", "conflict")


def broken_trace(script: Script) -> None:
    """One call of a run breaks the contract: none of them bills."""
    run = script.take()
    document = events.trace(run, list(_calls(script, run)))
    broken = script.rng.choice(document["data"]["calls"])
    broken["output_tokens"] = -1
    at_ms = script.timeline.sent_at(run.ended_ms)
    script.send_damaged(events.encoded(document), run.account.encode(), at_ms, "broken_trace")


def sent_trace(script: Script, run: Call, at_ms: int, kind: str) -> list[Call]:
    """Send a run; its calls, each of which bills."""
    calls = list(_calls(script, run))
    document = events.trace(run, calls)
    script.send(document, at_ms, kind)
    for call in calls:
        script.expect(call, "matched", call.ended_ms, at_ms, events.reported(call, document))
        script.was_active(call, call.ended_ms, beyond_us=call.beyond_us)
    return calls


def _calls(script: Script, run: Call) -> Iterator[Call]:
    """At least two; the request id of each is the run's with its number."""
    models = [model for model in script.catalog.models if script.is_clear(replace(run, model=model))]
    for number in range(1, script.rng.randint(2, MAX_CALLS) + 1):
        request_id = f"{run.request_id}/{number}"
        yield replace(run, model=script.rng.choice(models), request_id=request_id, used=meters.drawn(script.rng))
