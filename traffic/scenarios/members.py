"""Members of a period that are near others: the same user again, and two numbers of one instant."""

from __future__ import annotations

from dataclasses import replace

from traffic.events import GATEWAY_OF_SECONDS
from traffic.meters import drawn
from traffic.placement import Placement
from traffic.scenarios.plain import pair
from traffic.script import Script


def can_be_billed(placement: Placement) -> bool:
    """Whether the stack reads what the gateway reports, and a meter bills whole periods."""
    return placement.policy.knows_seconds and bool(placement.policy.period_meters)


def at_one_instant(script: Script) -> None:
    """Two calls of one user that ended together, with other numbers: of the latest the greater one counts."""
    call = replace(script.take(), source=f"{GATEWAY_OF_SECONDS}/{script.catalog.tag}")
    other = replace(call, request_id=f"{call.request_id}.beside", used=drawn(script.rng))
    pair(script, call, "at_one_instant")
    pair(script, other, "at_one_instant")
