"""A hundred edits by SQL under traffic, with Connect, Postgres and joins killed: every usage row has its price."""

from __future__ import annotations

import pytest

from deployment.stack import Stack
from tests.edits.run import KILLED, Plan, run


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_hundred_edits_under_kills_price_each_row_as_an_independent_computation_does(stack: Stack) -> None:
    """`make edits` has a thousand."""
    plan = Plan(seed=1, edits=100, kill_every_seconds=8, edit_every_seconds=0.5, abandons=False)
    result = run(stack, plan, lambda _: None)
    assert result.wrong == ()
    assert result.planted_seen, "a price that differs in its twelfth decimal must be seen"
    assert result.kills.keys() == set(KILLED)
    assert result.counts["rows of usage"] > 100
    assert result.counts["that would be another, had the end been known"] > 0
