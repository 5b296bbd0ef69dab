"""The rules that decide in billing, as stored in the table `rules`: how long windows take usage, and late policies.

`{"grace_seconds": 900, "late_policy": {<meter>: "correct" | "drop" | "hold"}, "meter_grace_seconds": {<meter>: 3600},
"hold": {<meter>: {"seconds": 604800, "expires": "drop", …}}, "history_until": "2026-11-01T00:00:00Z"}`: the last three
only where meters have their own grace, hold stragglers, or history is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from jobs.runtime.effective_rules import EffectiveRules, Rules, closed_under
from jobs.settings.holding import HoldConfig
from metering.holding import Hold
from metering.meters import DETAILS, OfMeter
from metering.vocabulary import LatePolicy

GRACE, POLICY, METER_GRACE, HOLD = "grace_seconds", "late_policy", "meter_grace_seconds", "hold"
HISTORY = "history_until"


def grace(rules: Rules) -> OfMeter[timedelta]:
    """How long after its end a window takes usage without a correction."""
    own = {meter: timedelta(seconds=seconds) for meter, seconds in rules.get(METER_GRACE, {}).items()}
    return OfMeter(timedelta(seconds=rules[GRACE]), own)


def history_until(rules: Rules) -> datetime | None:
    """By when windows ended that were billed elsewhere; None: all are billed here."""
    text = rules.get(HISTORY)
    return None if text is None else datetime.fromisoformat(text)


def closed_until(following: Iterable[EffectiveRules], frontier: datetime | None) -> OfMeter[datetime | None]:
    """The end up to which windows and periods have closed for all rows to come, by meter; None: none has.

    `following`: what decides these rows (`Fold.rules`). What closed by all of it stays closed under any later rules.
    """
    closed = [closed_under(held, grace(held.rules), frontier) for held in following]
    meters = {meter for of_rules in closed for meter in of_rules.own}
    return OfMeter(
        _earliest(of_rules.every for of_rules in closed),
        {meter: _earliest(of_rules.of(meter) for of_rules in closed) for meter in meters},
    )


def _earliest(instants: Iterable[datetime | None]) -> datetime | None:
    found = list(instants)
    return min((at for at in found if at is not None), default=None) if None not in found else None


def policy(rules: Rules) -> OfMeter[LatePolicy]:
    """What a straggler does to its closed window, by meter.

    An undeclared part of the tokens (`meters.DETAILS`) follows its whole: otherwise the whole would be dropped, and the
    part billed.
    """
    return OfMeter(LatePolicy.CORRECT, {meter: LatePolicy(text) for meter, text in _with_parts(rules[POLICY]).items()})


def of_meter(rule: OfMeter[Any], kind: pl.DataType) -> pl.Expr:
    """The value of a rule for the column `meter`."""
    if not rule.own:
        return pl.lit(rule.every, kind)
    return pl.col("meter").replace_strict(rule.own, default=rule.every, return_dtype=kind)


def holds(rules: Rules) -> Mapping[str, Hold]:
    """How stragglers wait, for each meter with the policy `hold`."""
    held = _with_parts(rules.get(HOLD, {}), rules[POLICY])
    return {meter: HoldConfig.model_validate(document).rule() for meter, document in held.items()}


def _with_parts(of_meters: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The rules by meter; parts of tokens without rules of their own follow their whole."""
    known = of_meters if known is None else known
    wholes = {part.name: part.within for part in DETAILS if part.within is not None and part.name not in known}
    return {**{part: of_meters[whole] for part, whole in wholes.items() if whole in of_meters}, **of_meters}


def following(last: Rules, present: Rules) -> Rules:
    """`present`, with the rules in `last` of meters that are no longer declared: usage of theirs may still come."""
    gone = last[POLICY].keys() - present[POLICY].keys()
    followed = {**present, POLICY: {**{meter: last[POLICY][meter] for meter in gone}, **present[POLICY]}}
    for name in (METER_GRACE, HOLD):
        own = {meter: rule for meter, rule in last.get(name, {}).items() if meter in gone} | present.get(name, {})
        followed |= {name: own} if own else {}
    return followed
