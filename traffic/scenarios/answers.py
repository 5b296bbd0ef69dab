"""Contents that are answered several times: live bills each answer, and an audit counts each content once an hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from traffic.events import GATEWAY_OF_SECONDS, Call
from traffic.placement import Placement
from traffic.scenarios.borders import is_certain
from traffic.scenarios.plain import pair
from traffic.scenarios.reversals import can_be_reversed
from traffic.script import ATTEMPTS, Script, moved

MIN_ANSWERS, MAX_ANSWERS = 2, 4
MAX_APART_MS = 15_000
HOUR_MS = 3_600_000
BESIDE_MS = 30_000
"""Within the minute before an hour, or the one after it."""
CREDITS = Decimal("0.5"), Decimal(1), Decimal(2)
Sent = tuple[Call, int]
"""A call, and when its parts are sent."""


def can_be_known(placement: Placement) -> bool:
    """Whether the stack reads what the gateway answers with, and a meter asks for it."""
    return placement.policy.knows_seconds and any(meter.once_per for meter in placement.policy.meters)


def can_be_taken_back(placement: Placement) -> bool:
    """Whether answers can be reversed as well."""
    return can_be_known(placement) and can_be_reversed(placement)


def repeated(script: Script) -> None:
    """A content of an account several times, in any order; another account has the same."""
    answers = _answers(script, lambda: _prompt(script))
    first, _ = answers[0]
    call, sent_ms = next(sent for sent in iter(lambda: _prompt(script), None) if sent[0].account != first.account)
    other = replace(call, source=first.source, content=first.content)
    _send(script, [*answers, (other, sent_ms)], "answers")


def straggling(script: Script) -> None:
    """Some of the answers well after their windows' grace, whichever is the first."""
    answers = _answers(script, lambda: script.rng.choice((_prompt, Script.take_straggling))(script))
    _send(script, answers, "straggling_answers")


def at_the_hour(script: Script) -> None:
    """Answers at the instant at which the next window begins, just before it, and around it."""
    start_ms, sent_ms = script.timeline.start_ms, script.timeline.last_ms
    hour_ms = next(at for at in range(start_ms // HOUR_MS * HOUR_MS, 0, -HOUR_MS) if is_certain(script, at))

    def around() -> Sent:
        call = script.take()
        at_ms = script.rng.randrange(hour_ms - BESIDE_MS, hour_ms + BESIDE_MS)
        ended_ms, beyond_us = script.rng.choice(((hour_ms, 0), (hour_ms - 1, 999), (at_ms, 0)))
        return replace(moved(call, ended_ms), beyond_us=beyond_us), sent_ms

    _send(script, _answers(script, around), "answers_at_the_hour")


def taken_back(script: Script) -> None:
    """Answers of which one is reversed, or loses all or some of a meter: another one counts, or not."""
    answers = _answers(script, lambda: _prompt(script))
    _send(script, answers, "reversed_answers")
    by_time = sorted(answers, key=lambda sent: sent[0].ended_ms)
    call, sent_ms = by_time[script.rng.random() < 0.3]
    at_ms = sent_ms + script.rng.randint(1, MAX_APART_MS)
    meter = script.rng.choice([meter.name for meter in script.placement.policy.meters if meter.once_per])
    drawn = script.rng.random()
    if drawn < 0.4:
        script.reverse(call, at_ms)
    else:
        script.reverse(call, at_ms, meter=meter, quantity=None if drawn < 0.7 else script.rng.choice(CREDITS))


def _prompt(script: Script) -> Sent:
    call = script.take()
    return call, script.timeline.sent_at(call.ended_ms)


def _answers(script: Script, draw: Callable[[], Sent]) -> list[Sent]:
    """Calls of one account and a user of their own that have one content, at different instants."""
    # Where the account of the first one changes, no other of that account is clear.
    first = next((call for call, _ in (draw() for _ in range(ATTEMPTS)) if script.is_clear(call)), None)
    assert first is not None, "no call fits; the catalog's changes leave no room"
    content, count = f"content-{first.request_id}", script.rng.randint(MIN_ANSWERS, MAX_ANSWERS)
    source = f"{GATEWAY_OF_SECONDS}/{script.catalog.tag}"
    found: dict[int, Sent] = {}
    for _ in range(ATTEMPTS):
        drawn, sent_ms = draw()
        call = replace(drawn, account=first.account, user=f"user-{content}", source=source, content=content)
        if script.is_clear(call):
            found.setdefault(call.ended_ms, (call, sent_ms))
        if len(found) == count:
            return list(found.values())
    raise AssertionError("no call fits; the catalog's changes leave no room")


def _send(script: Script, answers: list[Sent], kind: str) -> None:
    for call, sent_ms in answers:
        pair(script, call, kind, sent_ms)
