"""A decision on its whole way: topic, journal, usage, window; through the shipped applications."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.simulation.applications import JOBS
from tests.simulation.calls import Fault
from tests.simulation.simulate import simulate
from tests.simulation.steps import ENOUGH, Configure, Decide, Pass, Publish, Run, Send, Step

ALL = (0, 1, 2, 3)
ROUND: list[Step] = [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]
DAY_S = 86_400
PRICED: list[Step] = [Publish("output_tokens", 0, "EUR", 5, -90_000), Publish("account", 0, "EUR", 0, None)]
STATES = "SELECT decision, decided_by, decided_lsn IS NOT NULL FROM stragglers WHERE meter = 'output_tokens' ORDER BY 1"
WINDOWS = "SELECT sum(quantity), sum(amount) FROM usage_windows WHERE meter = 'output_tokens'"


def held(expires: str = "drop", seconds: int = 4 * DAY_S) -> list[Step]:
    """Three requests that were answered 4,000 s ago; their output tokens (1, 2, 3) wait."""
    sent = [Send(0, "usage", 0, request, 4_000, 7) for request in (1, 2, 3)]
    return [
        *PRICED,
        Configure("billing", "late_policy", {"output_tokens": "hold"}),
        Configure("billing", "hold", {"seconds": seconds, "expires": expires}),
        *ROUND,
        *sent,
        Pass(1, ALL),
        *ROUND,
    ]


def ended(database: str, steps: list[Step]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    outcome = simulate(database, 1, 1, steps)
    assert not outcome.broken, str(outcome)
    with psycopg.connect(database) as connection:
        window = connection.execute(WINDOWS).fetchone()
        assert window is not None
        return connection.execute(STATES).fetchall(), window


def test_approved_stragglers_are_billed_once_and_rejected_ones_never(
    histories: str,
) -> None:
    told: list[Step] = [Pass(1, ALL), *ROUND]
    decided: list[Step] = [Decide(0, "approve", False), *told, Decide(0, "reject", False), *told]
    # Once more, and otherwise. Those that were decided come last, each with the meters that wait for nobody.
    again: list[Step] = [Decide(2, "reject", False), Decide(5, "approve", False), *told]
    states, window = ended(histories, [*held(), *decided, *again])
    assert states == [("approve", "ann", True), ("hold", None, False), ("reject", "ann", True)]
    assert window[0] == 1


@pytest.mark.parametrize(("expires", "quantity"), [("drop", 0), ("correct", 6)])
def test_the_deadline_decides_where_only_time_passes(histories: str, expires: str, quantity: int) -> None:
    states, window = ended(histories, [*held(expires, 600), Pass(601, ALL), *ROUND])
    assert states == [(expires, None, False)] * 3
    assert window[0] == quantity


@pytest.mark.long
def test_a_restart_between_any_two_calls_decides_the_same(histories: str) -> None:
    crashes: list[Step] = [Run("billing", calls, Fault.CRASH) for calls in (3, 5, 8, 13, 21, 34)]
    decided: list[Step] = [
        Decide(0, "approve", False),
        Decide(1, "reject", False),
        Pass(1, ALL),
        Run("ingestion", ENOUGH, Fault.FREEZE),
    ]
    joined: list[Step] = [Run("joins", 9, Fault.LOSE_ANSWER), Run("joins", ENOUGH, Fault.FREEZE)]
    states, window = ended(histories, [*held(), *decided, *joined, *crashes])
    assert states == [("approve", "ann", True), ("hold", None, False), ("reject", "ann", True)]
    assert window[0] == 1
