"""What reversals leave of the requests of a key, by looking at all of them: the rule in its own words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from metering.joining import Decision
from metering.vocabulary import Outcome

Credits = Mapping[str, Decimal | None]
"""By meter how much is taken off; None: whatever it bills."""


@dataclass(frozen=True)
class Reversal:
    """When it was first received, and what it takes back; without a meter all."""

    received: int
    meter: str | None
    quantity: Decimal | None


@dataclass(frozen=True)
class Request:
    """When the first row of a request was received, and its rows."""

    received: int
    lsns: Collection[int]


def credits_of(
    decisions: Iterable[Decision], requests: Sequence[Request], reversals: Iterable[Reversal], reach: int
) -> dict[Decision, Credits | None]:
    """What is taken off these outcomes of a key; None: all. `requests`: in their order."""
    outcomes: dict[int, list[Decision]] = {number: [] for number in range(len(requests))}
    for decision in decisions:
        lsn = decision.request_lsn if decision.completion_lsn is None else decision.completion_lsn
        outcomes[next(number for number, each in enumerate(requests) if lsn in each.lsns)].append(decision)
    found: dict[Decision, Credits | None] = {}
    for number in range(len(requests)):
        own = [one for one in reversals if _takes(one, requests, reach, number)]
        if any(one.meter is None for one in own):
            found |= dict.fromkeys(outcomes[number])
            continue
        billable = [outcome for outcome in outcomes[number] if outcome.fate is not Outcome.SUPERSEDED]
        added_up = _added_up(own)
        if added_up and billable:
            found[max(billable, key=_weight)] = added_up
    return found


def _takes(reversal: Reversal, requests: Sequence[Request], reach: int, number: int) -> bool:
    """Whether a reversal takes something of a request: all of each in reach, or a credit of one of them."""
    reached = [n for n, each in enumerate(requests) if abs(each.received - reversal.received) <= reach]
    if reversal.meter is None or number not in reached:
        return number in reached
    before = [n for n in reached if requests[n].received <= reversal.received]
    return number == (before[-1] if before else reached[0])


def _added_up(reversals: Iterable[Reversal]) -> Credits:
    taken_off: dict[str, Decimal | None] = {}
    for one in reversals:
        assert one.meter is not None
        so_far = taken_off.get(one.meter, Decimal(0))
        taken_off[one.meter] = None if one.quantity is None or so_far is None else so_far + one.quantity
    return taken_off


def _weight(decision: Decision) -> tuple[bool, bool, int, int]:
    """Of several outcomes of a request the last of these has the credits."""
    lsns = decision.request_lsn or 0, decision.completion_lsn or 0
    return decision.fate is Outcome.MATCHED, decision.completion_lsn is not None, *lsns
