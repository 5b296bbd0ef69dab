"""What decides in billing, as the table `rules` keeps it: how long windows take usage, and what a straggler does.

`{"grace_seconds": 900, "late_policy": {<meter>: "correct" | "drop" | "hold"}, "meter_grace_seconds": {<meter>: 3600},
"hold": {<meter>: {"seconds": 604800, "expires": "drop", …}}}`: the last two only where meters have a grace of their
own, or hold stragglers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from jobs.runtime.holding import HoldConfig
from jobs.runtime.rules_in_force import Rules
from metering.holding import Hold
from metering.meters import OfMeter
from metering.words import LatePolicy

GRACE, POLICY, METER_GRACE, HOLD = "grace_seconds", "late_policy", "meter_grace_seconds", "hold"


def grace(rules: Rules) -> OfMeter[timedelta]:
    """How long after its end a window takes usage without a correction."""
    own = {meter: timedelta(seconds=seconds) for meter, seconds in rules.get(METER_GRACE, {}).items()}
    return OfMeter(timedelta(seconds=rules[GRACE]), own)


def policy(rules: Rules) -> OfMeter[LatePolicy]:
    """What a straggler does to its closed window."""
    return OfMeter(LatePolicy.CORRECT, {meter: LatePolicy(said) for meter, said in rules[POLICY].items()})


def holds(rules: Rules) -> Mapping[str, Hold]:
    """How stragglers wait, of each meter whose policy is `hold`."""
    return {meter: HoldConfig.model_validate(said).rule() for meter, said in rules.get(HOLD, {}).items()}


def following(last: Rules, present: Rules) -> Rules:
    """`present`, and what `last` said of meters that are declared no more: usage of theirs may still come."""
    gone = last[POLICY].keys() - present[POLICY].keys()
    followed = {**present, POLICY: {**{meter: last[POLICY][meter] for meter in gone}, **present[POLICY]}}
    for name in (METER_GRACE, HOLD):
        own = {meter: said for meter, said in last.get(name, {}).items() if meter in gone} | present.get(name, {})
        followed |= {name: own} if own else {}
    return followed
