"""Events exactly at an instant at which something else begins, and one microsecond before it.

Only what an event says of its own time can be put there: when it is received is the broker's to say.
"""

from __future__ import annotations

from dataclasses import replace

from traffic.calendar import period_starts
from traffic.catalog import HOT_MODELS
from traffic.events import Call
from traffic.meters import DAY, MONTH
from traffic.names import CHANGING_NAMES
from traffic.placement import MINUTE_MS, Placement, UnplaceableError, floor_minute
from traffic.scenarios.plain import either
from traffic.script import ATTEMPTS, Script, moved

CHANGING_MODELS = (*HOT_MODELS, "basalt-base", "ember-max", *CHANGING_NAMES)
MONTH_AND_MORE_MS = 33 * 86_400_000
DAYS_AND_MORE_MS = 3 * 86_400_000


def minute(script: Script) -> None:
    """Where one window ends and the next begins."""
    timeline = script.timeline
    last_ms = floor_minute(timeline.last_ms)
    borders = range(last_ms, timeline.first_ms, -MINUTE_MS) or [last_ms]
    call = _at(script, script.take(), script.rng.choice(borders))
    either(script, call, "border_minute")


def change(script: Script) -> None:
    """Where another price, plan or currency begins."""
    for _ in range(ATTEMPTS):
        call = replace(script.take(model=script.rng.choice(CHANGING_MODELS)), user=None)
        known = [at for at in script.catalog.changes(call.account, call.model) if is_certain(script, at)]
        if known:
            either(script, _at(script, call, script.rng.choice(known)), "border_change", script.timeline.last_ms)
            return
    raise AssertionError("no change of the catalog is a certain border")


def can_be_month(placement: Placement) -> bool:
    """Whether the last month's end, or the one before, is a certain straggler."""
    return placement.old().most_ms > MONTH_AND_MORE_MS and placement.policy.grace_seconds < 20 * 86_400


def month(script: Script) -> None:
    """Where a billing month begins in the zone of its account."""
    _begins(script, MONTH, "border_month")


def can_be_day(placement: Placement) -> bool:
    """Whether the last day's end, or the one before, is a certain straggler, and any meter asks for days."""
    is_certain = placement.old().most_ms > DAYS_AND_MORE_MS and placement.policy.grace_seconds < 20 * 3_600
    return is_certain and bool(placement.policy.period_meters)


def day(script: Script) -> None:
    """Where a day begins in the zone of its account."""
    _begins(script, DAY, "border_day")


def _begins(script: Script, period: str, kind: str) -> None:
    drawn = script.take()
    # Nobody else is this user, whose sessions may lie anywhere.
    call = replace(drawn, user=f"user-{kind}-{drawn.request_id}")
    zone = script.catalog.accounts[call.account].timezone
    at_ms = next(at for at in period_starts(zone, period, script.timeline.start_ms) if is_certain(script, at))
    either(script, _at(script, call, at_ms), kind, script.timeline.last_ms)


def is_certain(script: Script, border_ms: int) -> bool:
    """Whether it is accepted, and certain what becomes of what is sent last, on both sides of the border."""
    sent_ms = script.timeline.last_ms
    if not 0 <= sent_ms - border_ms <= script.placement.old().most_ms:
        return False
    try:
        for event_ms in (border_ms - 1, border_ms):
            script.placement.is_straggler(floor_minute(event_ms) + MINUTE_MS, sent_ms)
    except UnplaceableError:
        return False
    return True


def _at(script: Script, call: Call, border_ms: int) -> Call:
    """The same call, ended at the border or just before it."""
    is_before = script.rng.random() < 0.5
    return replace(moved(call, border_ms - is_before), beyond_us=999 if is_before else 0)
