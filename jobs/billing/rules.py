"""What decides in billing, as the table `rules` keeps it: how long windows take usage, and what a straggler does.

`{"grace_seconds": 900, "late_policy": {<meter>: "correct" | "drop"}, "meter_grace_seconds": {<meter>: 3600}}`: the last
only where a meter has a grace of its own.
"""

from __future__ import annotations

from datetime import timedelta

from jobs.runtime.rules_in_force import Rules
from metering.meters import OfMeter
from metering.words import Decision

GRACE, POLICY, METER_GRACE = "grace_seconds", "late_policy", "meter_grace_seconds"


def grace(rules: Rules) -> OfMeter[timedelta]:
    """How long after its end a window takes usage without a correction."""
    own = {meter: timedelta(seconds=seconds) for meter, seconds in rules.get(METER_GRACE, {}).items()}
    return OfMeter(timedelta(seconds=rules[GRACE]), own)


def policy(rules: Rules) -> OfMeter[Decision]:
    """What a straggler does to its closed window."""
    return OfMeter(Decision.CORRECT, {meter: Decision(said) for meter, said in rules[POLICY].items()})


def following(last: Rules, present: Rules) -> Rules:
    """`present`, and what `last` said of meters that are declared no more: usage of theirs may still come."""
    gone = last[POLICY].keys() - present[POLICY].keys()
    own = {meter: seconds for meter, seconds in last.get(METER_GRACE, {}).items() if meter in gone}
    own |= present.get(METER_GRACE, {})
    policies = {**{meter: last[POLICY][meter] for meter in gone}, **present[POLICY]}
    return {**present, POLICY: policies, **({METER_GRACE: own} if own else {})}
