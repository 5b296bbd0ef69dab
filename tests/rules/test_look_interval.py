"""Ingestion looks sooner while events come, as far as its budget goes, and as before while none do."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.kafka.look_interval import BUDGET, LookInterval
from jobs.runtime.kafka.source import _are_heartbeats

SECONDS = st.floats(min_value=0.1, max_value=600)
CPU_SECONDS = st.floats(min_value=0, max_value=100)


@given(usual=SECONDS, shortest=SECONDS, cpu_seconds=CPU_SECONDS)
def test_looking_sooner_costs_at_most_the_budget(usual: float, shortest: float, cpu_seconds: float) -> None:
    interval = LookInterval(usual, shortest).after(cpu_seconds, has_events=True)
    assert min(usual, shortest) <= interval <= usual
    assert cpu_seconds / interval - cpu_seconds / usual <= BUDGET * (1 + 1e-9)


@given(usual=SECONDS, shortest=SECONDS, cpu_seconds=CPU_SECONDS)
def test_without_events_looks_are_as_far_apart_as_before(usual: float, shortest: float, cpu_seconds: float) -> None:
    assert LookInterval(usual, shortest).after(cpu_seconds, has_events=False) == usual


@pytest.mark.parametrize(
    ("cpu_seconds", "seconds"),
    [
        (0.0, 1.0),
        (0.04, 1.0),
        (0.05, pytest.approx(1.111, abs=0.001)),
        (0.25, pytest.approx(2.941, abs=0.001)),
        (2.0, pytest.approx(4.598, abs=0.001)),
        (1e6, pytest.approx(5.0, abs=0.001)),
    ],
)
def test_by_default_cheap_batches_follow_after_a_second_and_dear_ones_later(cpu_seconds: float, seconds: float) -> None:
    assert LookInterval(5.0, 1.0).after(cpu_seconds, has_events=True) == seconds


@pytest.mark.parametrize(
    ("families", "are_heartbeats"),
    [
        (["heartbeat", "heartbeat"], True),
        ([], True),
        (["heartbeat", "request"], False),
        (["heartbeat", None], False),
        ([None], False),
    ],
    ids=["heartbeats", "nothing", "a request", "an unknown type, or a dead letter", "it alone"],
)
def test_all_but_heartbeats_are_events(families: list[str | None], *, are_heartbeats: bool) -> None:
    assert _are_heartbeats(pa.table({"family": pa.array(families, pa.string())})) is are_heartbeats
