"""Lateness and the state of a window, one microsecond before, at and after each border."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.lateness import WindowState, still_closed, window_state
from metering.windows import MINUTE, Window
from tests.specifications.lateness import Arrival, arrival

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(START, START + MINUTE)
GRACE = timedelta(minutes=5)
MICROSECOND = timedelta(microseconds=1)
delays = st.timedeltas(timedelta(days=-1), timedelta(days=40))
graces = st.integers(0, 86_400).map(lambda seconds: timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("received_at", "expected"),
    [
        (START - timedelta(minutes=5), Arrival.ON_TIME),
        (WINDOW.end - MICROSECOND, Arrival.ON_TIME),
        (WINDOW.end, Arrival.LATE),
        (WINDOW.end + GRACE - MICROSECOND, Arrival.LATE),
        (WINDOW.end + GRACE, Arrival.STRAGGLER),
        (WINDOW.end + timedelta(days=35), Arrival.STRAGGLER),
    ],
)
def test_each_border_belongs_to_the_later_side(received_at: datetime, expected: Arrival) -> None:
    assert arrival(received_at, WINDOW, GRACE) is expected


def test_without_grace_nothing_is_late_but_not_a_straggler() -> None:
    assert arrival(WINDOW.end - MICROSECOND, WINDOW, timedelta()) is Arrival.ON_TIME
    assert arrival(WINDOW.end, WINDOW, timedelta()) is Arrival.STRAGGLER


@given(delays, graces)
def test_waiting_longer_never_makes_a_row_less_late(delay: timedelta, grace: timedelta) -> None:
    order = list(Arrival)
    sooner = arrival(WINDOW.end + delay, WINDOW, grace)
    later = arrival(WINDOW.end + delay + MICROSECOND, WINDOW, grace)
    assert order.index(sooner) <= order.index(later)


@pytest.mark.parametrize(
    ("frontier", "expected"),
    [
        (None, WindowState.OPEN),
        (WINDOW.end - MICROSECOND, WindowState.OPEN),
        (WINDOW.end, WindowState.CLOSING),
        (WINDOW.end + GRACE - MICROSECOND, WindowState.CLOSING),
        (WINDOW.end + GRACE, WindowState.CLOSED),
    ],
)
def test_the_frontier_opens_closing_and_closed_at_the_same_borders(
    frontier: datetime | None, expected: WindowState
) -> None:
    assert window_state(WINDOW, GRACE, frontier) is expected
    corrected = WindowState.CORRECTED if expected is WindowState.CLOSED else expected
    assert window_state(WINDOW, GRACE, frontier, corrected=True) is corrected


@given(delays)
def test_no_window_is_closed_while_its_grace_is_unknown(frontier: timedelta) -> None:
    is_over = frontier >= timedelta()
    expected = WindowState.CLOSING if is_over else WindowState.OPEN
    assert window_state(WINDOW, None, WINDOW.end + frontier) is expected


@given(delays, delays, graces, st.booleans())
def test_what_reaches_a_closed_window_is_a_straggler(
    frontier: timedelta, after: timedelta, grace: timedelta, corrected: bool
) -> None:
    """The frontier promises that all received before it is folded, so what comes later was received at it or after."""
    state = window_state(WINDOW, grace, WINDOW.end + frontier, corrected=corrected)
    received_at = WINDOW.end + frontier + abs(after)
    if state in (WindowState.CLOSED, WindowState.CORRECTED):
        assert arrival(received_at, WINDOW, grace) is Arrival.STRAGGLER
    if state is not WindowState.OPEN:
        assert arrival(received_at, WINDOW, grace) is not Arrival.ON_TIME


@given(st.lists(st.tuples(graces, st.timedeltas(timedelta(), timedelta(days=2))), min_size=1))
def test_no_change_of_the_grace_opens_a_window_again_and_only_stragglers_reach_it(
    held: list[tuple[timedelta, timedelta]],
) -> None:
    """Each grace with how far the frontier came under it."""
    frontier, last, closed_before, was_over = START, held[0][0], None, False
    for grace, further in held:
        closed_before = still_closed(frontier, last, closed_before)
        last = grace
        for at in (frontier, frontier + further):
            is_closed = window_state(WINDOW, grace, at, closed_before=closed_before) is WindowState.CLOSED
            was_over = was_over or at >= WINDOW.end + grace
            assert is_closed == was_over
            assert not is_closed or arrival(at, WINDOW, grace, closed_before) is Arrival.STRAGGLER
        frontier += further
