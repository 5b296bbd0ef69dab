"""Calls of models whose price another name has, or that depends on what their events say."""

from __future__ import annotations

from dataclasses import replace

from traffic.attributes import MAX_SHORT_TOKENS, OF_CONTEXT
from traffic.meters import REPORTED
from traffic.names import BANDED_NAMES, NAMES
from traffic.placement import Placement
from traffic.scenarios.plain import either
from traffic.script import Script


def named(script: Script) -> None:
    """Priced by how its model begins, by what it says, or as another model."""
    either(script, script.take(model=script.rng.choice(NAMES)), "named")


def has_bands(placement: Placement) -> bool:
    """Whether prices depend on how much input there is."""
    return placement.policy.knows_attributes


def at_a_band(script: Script) -> None:
    """As much input as a band has at most, one token more, or nobody knows how much."""
    call = script.take(model=script.rng.choice(BANDED_NAMES))
    tokens = script.rng.choice((MAX_SHORT_TOKENS, MAX_SHORT_TOKENS + 1, None))
    used = {**call.used, OF_CONTEXT: tokens, REPORTED[2]: tokens and 0}
    either(script, replace(call, used=used), "at_a_band")
