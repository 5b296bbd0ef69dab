"""Windows of panes, against each pane's own windows by force."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.instants import EPOCH
from metering.views import hopping, sessions
from metering.windows import MINUTE

minutes = st.sets(st.integers(0, 400), max_size=40).map(lambda found: [EPOCH + n * MINUTE for n in sorted(found)])
lengths = st.integers(1, 90).map(lambda count: count * MINUTE)


@given(minutes, lengths, lengths)
def test_each_pane_is_in_every_hopping_window_that_holds_it_and_no_window_is_empty(
    panes: list[datetime], one: timedelta, other: timedelta
) -> None:
    size, hop = max(one, other), min(one, other)
    must = defaultdict(list)
    for pane in panes:
        start = EPOCH + (pane - EPOCH) // hop * hop
        while start + size > pane:
            must[start].append(pane)
            start -= hop
    found = list(hopping(panes, size, hop))
    assert found == sorted(must.items())


@given(minutes, lengths)
def test_windows_that_hop_by_their_length_tumble(panes: list[datetime], size: timedelta) -> None:
    assert [pane for _, of_window in hopping(panes, size, size) for pane in of_window] == panes


@given(minutes, st.integers(0, 30).map(lambda count: count * MINUTE))
def test_a_session_has_no_pause_longer_than_its_gap_and_one_before_and_after_it(
    panes: list[datetime], gap: timedelta
) -> None:
    found = list(sessions(panes, gap))
    assert [pane for _, _, run in found for pane in run] == panes
    for start, end, run in found:
        assert (start, end) == (run[0], run[-1] + MINUTE)
        assert all(after - (before + MINUTE) <= gap for before, after in pairwise(run))
    assert all(after[0] - before[1] > gap for before, after in pairwise(found))


def test_nothing_has_no_window() -> None:
    assert list(hopping([], MINUTE, MINUTE)) == []
    assert list(sessions([], MINUTE)) == []


def test_windows_a_long_time_apart_are_not_counted_through() -> None:
    panes = [EPOCH, EPOCH + timedelta(days=20_000)]
    assert [start for start, _ in hopping(panes, MINUTE, MINUTE)] == panes


@pytest.mark.parametrize("apart", [0, 1])
def test_a_pause_of_exactly_the_gap_keeps_a_session_together(apart: int) -> None:
    panes = [EPOCH, EPOCH + 6 * MINUTE + apart * MINUTE]
    assert len(list(sessions(panes, 5 * MINUTE))) == 1 + apart
