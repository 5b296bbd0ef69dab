"""A gap that changes: for any history of gaps and any cut of the events, sessions are what the gap in force allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jobs.sessionization.gaps import GapInForce, gap_in_force
from metering.sessions import Session, merge
from tests.specifications.sessions import Stored, fold

UNIT = timedelta(minutes=10)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
instants = st.integers(0, 60).map(lambda units: NOON + units * UNIT)
gaps = st.integers(1, 6).map(lambda units: units * UNIT)
Batch = tuple[list[datetime], timedelta, datetime]


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Batches of one user's events, each with its gap and the frontier that was stored before it (never going back)."""
    number = draw(st.integers(1, 8))
    reached = sorted(draw(st.lists(instants, min_size=number, max_size=number)))
    return [(draw(st.lists(instants, min_size=1, max_size=6)), draw(gaps), at) for at in reached]


class Folded:
    """One user's rows, and the gap that was kept last, as sessionization keeps it."""

    def __init__(self) -> None:
        self.rows: list[Stored] = []
        self.gap: timedelta | None = None
        self.closed_before: datetime | None = None

    def batch(self, events: list[datetime], gap: timedelta, frontier: datetime) -> GapInForce:
        taken = gap_in_force(gap, frontier, self.gap, self.closed_before)
        if gap != self.gap:
            self.closed_before = None if self.gap is None else taken.closed_before
            self.gap = gap
        minis = merge([Session(event, event, 1) for event in events], gap)
        self.rows = fold(self.rows, minis, gap, taken.closed_before)
        return taken

    @property
    def live(self) -> list[Session]:
        return sorted(row.session for row in self.rows if not row.retracted)


@given(histories())
def test_sessions_are_disjoint_and_more_than_the_gap_in_force_apart_and_no_event_is_lost(history: list[Batch]) -> None:
    folded, events = Folded(), 0
    for batch, gap, frontier in history:
        folded.batch(batch, gap, frontier)
        events += len(batch)
        assert all(later.start - earlier.end > gap for earlier, later in pairwise(folded.live))
        assert sum(session.events for session in folded.live) == events


@given(histories())
def test_oracle_under_gaps_that_only_grow_sessions_are_those_of_all_events_at_once(history: list[Batch]) -> None:
    folded = Folded()
    for (batch, _, frontier), gap in zip(history, sorted(gap for _, gap, _ in history), strict=True):
        folded.batch(batch, gap, frontier)
    every = [Session(event, event, 1) for batch, _, _ in history for event in batch]
    assert folded.gap is not None
    assert folded.live == merge(every, folded.gap)


@given(histories())
def test_a_closed_session_is_retracted_and_never_edited(history: list[Batch]) -> None:
    folded, seen = Folded(), set[tuple[Session, int]]()
    for (batch, gap, frontier), (_, _, next_frontier) in pairwise([*history, history[-1]]):
        folded.batch(batch, gap, frontier)
        assert seen <= {(row.session, row.version) for row in folded.rows}
        seen |= {(r.session, r.version) for r in folded.rows if r.session.closed(gap, next_frontier)}


@given(histories())
def test_only_a_gap_that_is_larger_or_the_first_one_known_merges_what_is_stored(history: list[Batch]) -> None:
    folded = Folded()
    for batch, gap, frontier in history:
        last = folded.gap
        assert folded.batch(batch, gap, frontier).is_wider == (last is None or gap > last)
