"""Events that late changes of the catalog concern, decided before they are told, and after."""

from __future__ import annotations

from dataclasses import replace

from traffic.events import GATEWAY_OF_SECONDS
from traffic.late_catalog import FIRST_MS, LAGS, LAST_MS, Late, Place
from traffic.placement import Placement
from traffic.population import GATEWAYS
from traffic.scenarios.plain import alone, either
from traffic.script import Script, moved

UNNUMBERED = GATEWAYS[-1]
JUST_NOW_MS = 20_000


def is_certain(placement: Placement) -> bool:
    """Whether the events of then are certain stragglers."""
    return placement.is_long_ago(LAGS)


def visit_all(script: Script, late: Late, times: int) -> None:
    """Each place so many times: at its borders, in the time around them, and now."""
    for first, place in enumerate(late.places):
        for number in range(first, first + times):
            _visit(script, late, place, number)


def _visit(script: Script, late: Late, place: Place, number: int) -> None:
    timeline, made_ms = script.timeline, late.before.made_ms
    sent_ms = script.rng.randint(timeline.start_ms, timeline.last_ms)
    # At each border, and just before each, in turn: between two of them something else holds.
    borders_ms = place.borders_ms or (late.gone_ms,)
    border_ms = borders_ms[(number // 4 + number % 4) % len(borders_ms)]
    kind = "after_late_catalog" if script.knows_late else "before_late_catalog"
    ended_ms, beyond_us = (
        (border_ms, 0),
        (border_ms - 1, 999),
        (made_ms - script.rng.randint(LAST_MS, FIRST_MS), 0),
        (sent_ms - script.rng.randint(1, JUST_NOW_MS), 0),
    )[number % 4]
    drawn = script.take()
    of_seconds = script.placement.policy.knows_seconds and script.rng.random() < 0.5
    call = replace(
        moved(drawn, ended_ms),
        account=place.account or drawn.account,
        model=place.model,
        # Nobody else is this user, whose sessions may lie anywhere.
        user=f"user-{kind}-{drawn.request_id}",
        source=f"{GATEWAY_OF_SECONDS if of_seconds else UNNUMBERED}/{script.catalog.tag}",
        request_id=f"{drawn.request_id}.{kind}",
        beyond_us=beyond_us,
    )
    either(script, call, kind, sent_ms)
    if number % 4 == 2:
        # Given up after the change is told, and decided by what was known when it came.
        abandoned = replace(call, request_id=f"{call.request_id}.alone")
        alone(script, abandoned, sent_ms, kind)
