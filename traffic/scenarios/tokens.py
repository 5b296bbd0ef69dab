"""A gateway that names no request: an event for each type of tokens of a call, each an outcome of its own."""

from __future__ import annotations

from traffic import events
from traffic.events import Call
from traffic.meters import REPORTED
from traffic.placement import Placement
from traffic.script import Script

TYPES = REPORTED[:2]


def can_be_counted(placement: Placement) -> bool:
    """Whether the stack has the contract, and no meter asks for what such events do not say."""
    return placement.policy.knows_tokens and not any(meter.where for meter in placement.policy.meters)


def tokens_alone(script: Script) -> None:
    """Both types, one of which comes twice."""
    call = script.take()
    at_ms = script.timeline.sent_at(call.ended_ms)
    _sent(script, call, at_ms, "tokens_alone")
    document = events.tokens(call, script.rng.choice(TYPES))
    script.send(document, at_ms + script.rng.randint(1, 15_000), "tokens_again", "duplicate")


def straggling_tokens(script: Script) -> None:
    """Both types, well after their window's grace."""
    call, sent_ms = script.take_straggling()
    _sent(script, call, sent_ms, "straggling_tokens")


def _sent(script: Script, call: Call, at_ms: int, kind: str) -> None:
    for column in TYPES:
        script.send(events.tokens(call, column), at_ms, kind)
        script.expect_quantity(call, at_ms, {column: call.used[column]})
