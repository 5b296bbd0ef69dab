"""Method: starts with any configurations and batches of any size, compared with who decided each position."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.effective_rules import History, extended, rules_at

RULES: list[dict[str, Any]] = [
    {"grace_seconds": grace, "late_policy": {"requests": "drop"}} for grace in (60, 300, 900)
]
STARTS = st.lists(st.tuples(st.sampled_from(RULES), st.lists(st.integers(1, 5), max_size=3)), min_size=1, max_size=8)


@given(starts=STARTS, adopted=st.integers(1, 50))
def test_oracle_the_history_has_the_rules_of_every_position_once(
    starts: list[tuple[dict[str, Any], list[int]]], adopted: int
) -> None:
    """`adopted`: where a version that kept none had come to."""
    history: History = ()
    decided: dict[int, dict[str, Any]] = {}
    position = adopted
    for present, batches in starts:
        for size in batches:
            history = extended(history, position, present)
            decided |= dict.fromkeys(range(position, position + size), present)
            position += size
    assert {at: rules_at(history, at) for at in decided} == decided
    changes = [at for at in decided if at == adopted or decided[at] != decided[at - 1]]
    assert [held.first for held in history] == changes


def test_positions_before_the_first_known_rules_were_decided_by_them() -> None:
    assert rules_at(extended((), 7, RULES[0]), 1) == RULES[0]
    with pytest.raises(IndexError):
        rules_at((), 1)
