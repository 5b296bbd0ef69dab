"""An event is behind the horizon only when no lower number can appear."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from webhooks.horizon import Horizon

NOBODY: frozenset[str] = frozenset()


def test_without_writers_everything_is_settled() -> None:
    assert Horizon().settled(7, NOBODY) == 7


def test_what_was_newest_is_settled_when_those_who_wrote_then_have_ended() -> None:
    horizon = Horizon()
    assert horizon.settled(7, frozenset({"a", "b"})) == 0
    assert horizon.settled(9, frozenset({"b", "c"})) == 0
    assert horizon.settled(11, frozenset({"c"})) == 7
    assert horizon.settled(12, frozenset({"d"})) == 11


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "end", "look"])), max_size=60))
def test_no_number_up_to_the_horizon_belongs_to_an_open_writer(steps: list[tuple[int, str]]) -> None:
    horizon, newest, begun = Horizon(), 0, 0
    open_: dict[int, tuple[str, list[int]]] = {}
    for which, step in steps:
        if step == "write":
            begun += 1
            newest += 1
            open_.setdefault(which, (f"{which}/{begun}", []))[1].append(newest)
        elif step == "end":
            open_.pop(which, None)
        else:
            settled = horizon.settled(newest, frozenset(name for name, _ in open_.values()))
            assert all(number > settled for _, numbers in open_.values() for number in numbers)
    assert horizon.settled(newest, NOBODY) == newest
