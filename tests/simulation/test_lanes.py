"""Lanes, by simulation: two sets of applications that share the accounts bill what one bills (decision 0113)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from metering.vocabulary import EventType
from tests.simulation.lanes import LANES, PARTITIONS, billed, history, lane_differences
from tests.simulation.world import World

ONE_SET = frozenset(range(PARTITIONS))


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(300, 340))
def test_lanes_bill_together_what_one_set_of_applications_bills(histories: str, seed: int) -> None:
    assert not list(lane_differences(histories, seed))


@dataclass(frozen=True)
class OneIdentity:
    """A gateway sends two accounts' events under one identity."""

    def do(self, world: World) -> str:
        """The first of a0, the second of a1."""
        data: dict[str, Any] = {
            "request_id": "r9",
            "user_id": "u0",
            "model": "fast",
            "status": "completed",
            "output_tokens": 5,
        }
        first = world.event(EventType.USAGE, "a0", 0, **data)
        world.send(0, first)
        world.clock.go(1)
        world.send(1, json.dumps({**json.loads(first), "subject": "a1"}).encode())
        return ""


def test_what_lanes_lose_is_a_conflict_between_accounts_of_two_lanes(histories: str) -> None:
    """One set of applications bills the first event and lists the second as a conflict. Each lane bills its own."""
    steps = [*history(300)[:PARTITIONS], OneIdentity()]
    one, several = ([billed(histories, 300, steps, owned) for owned in sets] for sets in ((ONE_SET,), LANES))
    assert not [sentence for _, broken in (*one, *several) for sentence in broken]
    output = {
        name: sum(sums[0] for bill, _ in bills for key, sums in bill.items() if key[0] == "a1" and key[3] == "requests")
        for name, bills in (("one", one), ("several", several))
    }
    assert output == {"one": Decimal(1), "several": Decimal(2)}
