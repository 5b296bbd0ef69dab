"""What the simulator promises: two dozen histories end as the oracle says, and each can be run again.

`make histories` runs five thousand. `python -m tests.simulation --seed N` runs one, prints it and makes it short.
"""

from __future__ import annotations

import pytest

from jobs.streams import EVENTS_TOPIC
from tests.simulation.applications import commits_of_delta_rs
from tests.simulation.calls import Fault
from tests.simulation.history import ALIASES, drawn
from tests.simulation.simulate import shrunk, simulate, simulate_seed
from tests.simulation.steps import AddPartition, Name, Pass, Publish, Run, Send
from tests.simulation.topics import MORE, PLACES, TYPES, EndTopic, LeaveOut, ListTopics

HISTORIES = 24


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_any_history_ends_as_the_oracle(histories: str, seed: int) -> None:
    ended = simulate_seed(histories, seed)
    assert not ended.broken, str(ended)


BY_DELTA_RS = range(401, 461, 3)
"""Seeds whose drivers leave all commits to delta-rs."""


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", BY_DELTA_RS)
def test_a_history_whose_commits_are_of_delta_rs_ends_as_the_oracle(histories: str, seed: int) -> None:
    with commits_of_delta_rs():
        ended = simulate_seed(histories, seed)
    assert not ended.broken, str(ended)


ALIASED = range(203, 263, 4)
"""Seeds whose histories have aliases."""


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", ALIASED)
def test_a_history_with_aliases_ends_as_the_oracle(histories: str, seed: int) -> None:
    ended = simulate_seed(histories, seed)
    assert not ended.broken, str(ended)


SPREAD = range(301, 381, 4)
"""Seeds whose histories are spread over two topics."""


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", SPREAD)
def test_a_history_over_two_topics_ends_as_the_oracle(histories: str, seed: int) -> None:
    ended = simulate_seed(histories, seed)
    assert not ended.broken, str(ended)


def test_topics_of_histories_start_later_grow_end_and_come_back_and_each_is_left_out_and_silent() -> None:
    of_seeds = [drawn(seed)[1] for seed in SPREAD]
    steps = [step for steps in of_seeds for step in steps]
    listings = [[at for at, step in enumerate(steps) if isinstance(step, ListTopics)] for steps in of_seeds]
    assert all(listings)
    assert any(first > 0 for first, *_ in listings)
    assert any(len(again) > 1 for again in listings)
    assert {types for step in steps if isinstance(step, ListTopics) for _, types in step.topics} == {*TYPES}
    for kind in (EndTopic, LeaveOut, AddPartition):
        assert {step.topic for step in steps if isinstance(step, kind)} == {EVENTS_TOPIC, MORE}
    silences = {step.beats for step in steps if isinstance(step, Pass)}
    assert silences >= {(0,), (3, 4, 5), tuple(range(PLACES))}
    assert {step.partition for step in steps if isinstance(step, Send)} >= {*range(PLACES)}


def test_aliases_of_histories_change_end_and_are_told_before_and_after_the_usage() -> None:
    for seed in ALIASED:
        assert any(isinstance(step, Name) for step in drawn(seed)[1])
    steps = [step for seed in ALIASED for step in drawn(seed)[1]]
    told = [step for step in steps if isinstance(step, Name)]
    assert {step.deleted for step in told} == {True, False}
    assert {(step.name, step.model) for step in told} == {*ALIASES}
    sent = [place for place, step in enumerate(steps) if isinstance(step, Send)]
    assert any(isinstance(step, Name) and place > sent[0] for place, step in enumerate(steps))
    assert {step.model for step in steps if isinstance(step, Publish)} == {"fast", "dear"}


@pytest.mark.long
def test_a_seed_is_one_history(histories: str) -> None:
    once, again = simulate_seed(histories, 7), simulate_seed(histories, 7)
    assert once.steps == again.steps
    assert once.came == again.came


@pytest.mark.long
def test_a_violation_is_found_and_its_history_shrunk(histories: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that forgets to move its position bills again what it has billed."""
    monkeypatch.setattr("jobs.runtime.postgres.sink.PostgresSink._move", lambda *_: None)
    seed = next(seed for seed in range(20) if simulate_seed(histories, seed).broken)
    partitions, steps = drawn(seed)
    failed = simulate(histories, seed, partitions, steps)
    short = shrunk(histories, failed, seconds=20)
    assert short.broken
    assert len(short.steps) < len(steps)


def test_histories_kill_duplicate_and_disconnect_drivers() -> None:
    faults = {step.fault for seed in range(HISTORIES) for step in drawn(seed)[1] if isinstance(step, Run)}
    assert faults == set(Fault)
