"""Sessions: `oracle_*` compares with a walk over the single events; `fold` is shown for any cut, order and frontier."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.sessions import Session, merge
from tests.specifications.sessions import Stored, fold

GAP = timedelta(minutes=30)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# Multiples of half a gap, give or take a microsecond: pairs are often exactly one gap apart, or just not.
instants = st.builds(
    lambda halves, microseconds: NOON + halves * GAP / 2 + microseconds * MICROSECOND,
    st.integers(0, 30),
    st.integers(-1, 1),
)
event_times = st.lists(instants, min_size=1, max_size=25)
frontiers = st.one_of(st.none(), instants)


def single(instant: datetime) -> Session:
    return Session(instant, instant, 1)


def before(frontier: datetime | None) -> datetime | None:
    return None if frontier is None else frontier - GAP


def walk(events: list[datetime]) -> list[Session]:
    sessions: list[list[datetime]] = []
    for event in sorted(events):
        if not sessions or event - sessions[-1][-1] > GAP:
            sessions.append([])
        sessions[-1].append(event)
    return [Session(events[0], events[-1], len(events)) for events in sessions]


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[Session], datetime | None]]:
    """Events cut into batches in any order; each with the frontier stored before it."""
    events = draw(st.permutations(draw(event_times)))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=5)))
    parts = [events[start:end] for start, end in pairwise([0, *cuts, len(events)])]
    return [(merge(map(single, part), GAP), draw(frontiers)) for part in parts]


@given(event_times)
def test_oracle_merged_events_are_the_sessions_of_a_walk(events: list[datetime]) -> None:
    assert merge(map(single, events), GAP) == walk(events)


@given(batches())
def test_any_cut_in_any_order_merges_to_the_same_sessions(cut: list[tuple[list[Session], datetime | None]]) -> None:
    minis = [mini for batch, _ in cut for mini in batch]
    merged = merge(minis, GAP)
    assert merge(merged, GAP) == merged
    assert all(later.start - earlier.end > GAP for earlier, later in pairwise(merged))
    assert sum(session.events for session in merged) == sum(mini.events for mini in minis)


def test_events_one_gap_apart_are_one_session_and_a_microsecond_more_makes_two() -> None:
    assert len(merge([single(NOON), single(NOON + GAP)], GAP)) == 1
    assert len(merge([single(NOON), single(NOON + GAP + MICROSECOND)], GAP)) == 2


def test_a_session_inside_another_does_not_shorten_it() -> None:
    outer, inner = Session(NOON, NOON + 4 * GAP, 9), Session(NOON + GAP, NOON + 2 * GAP, 2)
    assert merge([inner, outer], GAP) == [Session(NOON, NOON + 4 * GAP, 11)]


@given(batches())
def test_oracle_folded_sessions_are_those_of_all_events_at_once(
    cut: list[tuple[list[Session], datetime | None]],
) -> None:
    stored: list[Stored] = []
    for minis, frontier in cut:
        stored = fold(stored, minis, GAP, before(frontier))
    live = sorted(row.session for row in stored if not row.retracted)
    assert live == merge([mini for minis, _ in cut for mini in minis], GAP)


@given(batches())
def test_a_closed_session_is_kept_and_its_successor_has_a_higher_version(
    cut: list[tuple[list[Session], datetime | None]],
) -> None:
    stored: list[Stored] = []
    for minis, frontier in cut:
        earlier, stored = stored, fold(stored, minis, GAP, before(frontier))
        kept = {(row.session, row.version) for row in stored}
        for row in earlier:
            successor = next(new for new in stored if not new.retracted and new.session.near(row.session, GAP))
            if row.retracted or row.session.closed(GAP, frontier):
                assert (row.session, row.version) in kept
                is_unchanged = not row.retracted and successor.session == row.session
                assert successor.version > row.version or (is_unchanged and successor.version == row.version)
            else:
                assert successor.version >= row.version


def test_a_late_event_joins_two_closed_sessions_into_one_new_version() -> None:
    first, second = Session(NOON, NOON + GAP, 3), Session(NOON + 3 * GAP, NOON + 4 * GAP, 5)
    stored = [Stored(first), Stored(second, version=4)]
    result = fold(stored, [single(NOON + 2 * GAP)], GAP, second.end + MICROSECOND)
    assert result == [
        Stored(first, 1, retracted=True),
        Stored(second, 4, retracted=True),
        Stored(Session(NOON, NOON + 4 * GAP, 9), 5),
    ]


def test_an_open_session_keeps_its_version_while_it_grows() -> None:
    stored = [Stored(Session(NOON, NOON + GAP, 3), version=2)]
    assert fold(stored, [single(NOON + 2 * GAP)], GAP, NOON + GAP) == [Stored(Session(NOON, NOON + 2 * GAP, 4), 2)]


def test_a_session_is_closed_only_when_the_frontier_has_passed_its_end_by_more_than_the_gap() -> None:
    session = Session(NOON, NOON + GAP, 2)
    assert not session.closed(GAP, None)
    assert not session.closed(GAP, session.end + GAP)
    assert session.closed(GAP, session.end + GAP + MICROSECOND)


@pytest.mark.parametrize(("end", "events"), [(NOON - MICROSECOND, 1), (NOON, 0), (NOON, -1)])
def test_a_session_that_could_not_exist_is_refused(end: datetime, events: int) -> None:
    with pytest.raises(ValueError, match="session"):
        Session(NOON, end, events)
