"""Usage that is taken back, all or in part: live bills it all the same, and the next audit takes it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from traffic import events
from traffic.events import Call
from traffic.placement import Placement
from traffic.scenarios.plain import alone, either, single
from traffic.scenarios.traces import can_be_taken_apart, sent_trace
from traffic.script import Script, desk_of

MAX_APART_MS = 15_000
Credit = tuple[str, Decimal | None]
"""Of a meter so much, or whatever it bills."""


def can_be_reversed(placement: Placement) -> bool:
    """Whether the stack lists the desk among those who may take back."""
    return placement.policy.may_reverse(desk_of(""))


def can_be_reversed_in_traces(placement: Placement) -> bool:
    """Whether the stack knows the calls of a run as well."""
    return can_be_reversed(placement) and can_be_taken_apart(placement)


def whole(script: Script) -> None:
    """All that a call bills; the reversal comes before it, after it, or twice."""
    call, ended_ms = _called(script)
    at_ms = _some_time(script, ended_ms)
    document = script.reverse(call, at_ms)
    drawn = script.rng.random()
    if drawn < 0.3:
        script.send(document, at_ms + script.rng.randint(1, MAX_APART_MS), "reversal_again", "duplicate")
    elif drawn < 0.5:
        script.reverse(call, at_ms + script.rng.randint(1, MAX_APART_MS), number=2)
    elif drawn < 0.7:
        _credited(script, call, ended_ms, number=2)


def of_two_reports(script: Script) -> None:
    """A call that was reported twice: what was superseded bills nothing, and stays."""
    call = script.take()
    _, at_ms = single(script, call, "reversed")
    other = replace(call, ended_ms=call.ended_ms - 1)
    at_ms += script.rng.randint(1, 9_000)
    script.send({**events.usage(other), "id": f"{call.request_id}.u2"}, at_ms, "reversed")
    script.expect(other, "superseded", other.ended_ms, at_ms)
    script.was_active(other, other.ended_ms)
    script.reverse(call, at_ms + script.rng.randint(1, MAX_APART_MS))


def in_part(script: Script) -> None:
    """Parts of what a call bills, which add up; one of them comes twice, and once it says more the second time."""
    call, ended_ms = _called(script)
    last_ms = ended_ms
    for number in range(1, script.rng.choice((1, 1, 2, 3)) + 1):
        document, last_ms = _credited(script, call, ended_ms, number)
    again_ms = last_ms + script.rng.randint(1, MAX_APART_MS)
    drawn = script.rng.random()
    if drawn < 0.3:
        script.send(document, again_ms, "reversal_again", "duplicate")
    elif drawn < 0.5:
        other = {**document, "data": {**document["data"], "reason": "another"}}
        script.send(other, again_ms, "reversal_otherwise", "conflict")


def of_straggler(script: Script) -> None:
    """Of a call that came after grace, of which one meter may have been dropped."""
    call, sent_ms = script.take_straggling()
    either(script, call, "reversed", sent_ms)
    if script.rng.random() < 0.5:
        script.reverse(call, _some_time(script, sent_ms))
    else:
        _credited(script, call, sent_ms)


def of_abandoned(script: Script) -> None:
    """Of a request that was never answered."""
    call = script.take(at_most_lag_ms=script.placement.included(alone=True).most_ms - 1)
    sent_ms = script.timeline.sent_at(call.started_ms)
    alone(script, call, sent_ms, "reversed")
    script.reverse(call, _some_time(script, sent_ms))


def of_trace(script: Script) -> None:
    """Of one call of an agent's run: the others stay."""
    run = script.take()
    at_ms = script.timeline.sent_at(run.ended_ms)
    calls = sent_trace(script, run, at_ms, "reversed_trace")
    script.reverse(script.rng.choice(calls), _some_time(script, at_ms))


def of_nobody(script: Script) -> None:
    """Of a request that nobody sends: it takes nothing back."""
    call = script.take()
    script.reverse(replace(call, request_id=f"{call.request_id}.nobody"), script.timeline.sent_at(call.ended_ms))


def unlisted(script: Script) -> None:
    """By a source that may not: a dead letter, and the call stays billed."""
    call, ended_ms = _called(script)
    document = events.reversal(call, call.source, ended_ms)
    script.send(document, ended_ms, "unlisted_reversal", "rejected", "malformed")


def _called(script: Script) -> tuple[Call, int]:
    """A call that is billed as any other, and when its last part is sent."""
    call = script.take()
    either(script, call, "reversed")
    return call, script.timeline.sent_at(call.ended_ms)


def _some_time(script: Script, sent_ms: int) -> int:
    """Before what is sent at this instant, or after it."""
    if script.rng.random() < 0.3:
        return max(script.timeline.start_ms, sent_ms - script.rng.randint(1, MAX_APART_MS))
    return sent_ms + script.rng.randint(1, MAX_APART_MS)


def _credited(script: Script, call: Call, sent_ms: int, number: int = 1) -> tuple[events.Document, int]:
    """A credit of a call, and when it is sent."""
    meter, quantity = script.rng.choice(list(_credits(script, call)))
    at_ms = _some_time(script, sent_ms)
    return script.reverse(call, at_ms, number=number, meter=meter, quantity=quantity), at_ms


def _credits(script: Script, call: Call) -> Iterator[Credit]:
    """Of each meter some, all, and more than there is."""
    for meter in script.placement.policy.meters:
        units = Decimal(1 if meter.sums is None else call.used.get(meter.sums) or 0)
        yield meter.name, None
        yield meter.name, (units / 3).quantize(Decimal("0.001"))
        yield meter.name, units + 1
    for of_period in script.placement.policy.period_meters:
        yield of_period.name, None
        # It takes nothing off a set.
        yield of_period.name, Decimal(1)
