"""Method: random rows of one key in every order and at every distance that matters, cut anywhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.joining import FINAL, Decision, Row, Side, Winner, step, waiting
from metering.vocabulary import Outcome

SECOND_US = 1_000_000
TIMEOUT_S = 3
TIMEOUTS_S = (3, 1, 6)
R, C, U = Side.REQUEST, Side.COMPLETION, Side.BOTH
LESSER, LEAST = FINAL - 4, FINAL - 6
"""Merits of an answer that was cancelled, and of one of which only a partial count is known."""
Event = tuple[Side, float] | tuple[Side, float, float] | tuple[Side, float, float, int]
Winners = tuple[Winner, ...]


def at(seconds: float) -> int:
    return round(seconds * SECOND_US)


def rows_of(*events: Event) -> list[Row]:
    """Rows with lsn 1, 2, …; an event is its side, when it was received, how long it waits, if not as all, and what its
    report is worth, if another beats it."""
    return [
        Row(lsn, event[0], at(event[1]), at(event[2] if len(event) > 2 else TIMEOUT_S), *event[3:])
        for lsn, event in enumerate(events, start=1)
    ]


def decisions(*events: Event, frontier: float | None = None) -> list[Decision]:
    return step((), rows_of(*events), None if frontier is None else at(frontier))[1]


keys = st.lists(
    st.tuples(
        st.sampled_from(Side),
        st.integers(0, 14),
        st.sampled_from(TIMEOUTS_S),
        st.sampled_from([FINAL, FINAL, LESSER, LEAST]),
    ),
    max_size=10,
)
"""Any row may wait any timeout: of its model, or what held before a change."""


@st.composite
def cut_keys(draw: st.DrawFn) -> tuple[list[Row], list[tuple[list[Row], int]], int]:
    """Rows, the same rows cut into batches with the frontier after each, and the frontier after all."""
    rows = rows_of(*draw(keys))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    batches, frontier, begin = [], 0, 0
    for end in cuts:
        # What comes later was received at or after the frontier; it may stay behind that by any distance.
        earliest = min((row.received_us for row in rows[end:]), default=at(30))
        frontier = max(frontier, earliest - at(draw(st.integers(0, 8))))
        batches.append((rows[begin:end], frontier))
        begin = end
    last = frontier + at(draw(st.integers(0, 20)))
    return rows, [*batches, (rows[begin:], last)], last


@given(cut_keys())
def test_outcomes_are_the_same_however_the_rows_are_cut_into_batches(
    case: tuple[list[Row], list[tuple[list[Row], int]], int],
) -> None:
    rows, batches, last = case
    memory: Winners = ()
    decided: list[Decision] = []
    for batch, frontier in batches:
        memory, new = step(memory, batch, frontier)
        decided += new
    memory_at_once, at_once = step((), rows, last)
    assert Counter(decided) == Counter(at_once)
    assert set(memory) == set(memory_at_once)


@given(cut_keys())
def test_pending_rows_are_those_without_an_outcome(
    case: tuple[list[Row], list[tuple[list[Row], int]], int],
) -> None:
    """A start knows no more than those: what has waited and is gone has left nothing behind."""
    rows, _, last = case
    memory, _ = step((), rows, last)
    undecided = {winner for winner in memory if winner.partner is None}
    assert set(waiting(row for row in rows if row.lsn in {winner.lsn for winner in undecided})) == undecided


@given(keys, st.integers(0, 30))
def test_every_row_ends_in_exactly_one_outcome_or_waits(events: list[Event], frontier: int) -> None:
    rows = rows_of(*events)
    memory, decided = step((), rows, at(frontier))
    named = Counter(lsn for d in decided for lsn in {d.request_lsn, d.completion_lsn} - {None})
    undecided = Counter({winner.lsn for winner in memory if winner.partner is None})
    assert named + undecided == Counter(row.lsn for row in rows)


@given(keys)
def test_two_matched_rows_are_within_the_timeout_of_the_request(events: list[Event]) -> None:
    rows = {row.lsn: row for row in rows_of(*events)}
    for decision in decisions(*events, frontier=100):
        if decision.fate is Outcome.MATCHED:
            assert decision.request_lsn is not None
            assert decision.completion_lsn is not None
            request, completion = rows[decision.request_lsn], rows[decision.completion_lsn]
            assert abs(request.received_us - completion.received_us) <= request.timeout_us


@given(keys)
def test_nothing_waits_when_the_frontier_is_past_every_timeout(events: list[Event]) -> None:
    memory, _ = step((), rows_of(*events), at(100))
    assert memory == ()


@pytest.mark.parametrize("events", [[(R, 0), (C, 3)], [(C, 0), (R, 3)]])
def test_a_pair_exactly_the_timeout_apart_is_matched(events: list[Event]) -> None:
    assert [d.fate for d in decisions(*events)] == [Outcome.MATCHED]


def test_a_pair_further_apart_is_abandoned_and_orphaned() -> None:
    assert decisions((R, 0), (C, 3.000001), frontier=100) == [
        Decision(Outcome.ABANDONED, 1, None),
        Decision(Outcome.ORPHANED, None, 2),
    ]


def test_a_row_waits_until_the_frontier_is_past_its_timeout() -> None:
    assert decisions((R, 0), frontier=3) == []
    assert decisions((R, 0), frontier=3.000001) == [Decision(Outcome.ABANDONED, 1, None)]
    assert decisions((R, 0), frontier=None) == []


def test_of_several_requests_the_lowest_lsn_counts() -> None:
    assert decisions((R, 1), (R, 0), (C, 2)) == [
        Decision(Outcome.SUPERSEDED, 2, None),
        Decision(Outcome.MATCHED, 1, 3),
    ]


def test_a_matched_key_supersedes_rows_within_its_timeout() -> None:
    assert decisions((R, 0), (C, 1), (C, 4), (R, 3))[1:] == [
        Decision(Outcome.SUPERSEDED, None, 3),
        Decision(Outcome.SUPERSEDED, 4, None),
    ]


def test_a_request_id_used_again_after_the_timeout_is_another_request() -> None:
    again = decisions((R, 0), (C, 1), (R, 6), (C, 7))
    assert again == [Decision(Outcome.MATCHED, 1, 2), Decision(Outcome.MATCHED, 3, 4)]


def test_usage_is_both_sides_at_once() -> None:
    assert decisions((U, 0)) == [Decision(Outcome.MATCHED, 1, 1)]
    assert decisions((U, 0), (R, 1), (C, 1), (U, 1))[1:] == [
        Decision(Outcome.SUPERSEDED, 2, None),
        Decision(Outcome.SUPERSEDED, None, 3),
        Decision(Outcome.SUPERSEDED, 4, 4),
    ]


def test_usage_completes_a_waiting_request_and_begins_a_waiting_completion() -> None:
    assert decisions((R, 0), (U, 1)) == [Decision(Outcome.MATCHED, 1, 2)]
    assert decisions((C, 0), (U, 1)) == [Decision(Outcome.MATCHED, 2, 1)]


def test_the_words_of_the_rule_are_those_of_the_table() -> None:
    assert [fate.value for fate in Outcome] == [outcome.value for outcome in Outcome]


def test_a_request_waits_its_own_timeout_and_a_completion_the_longest() -> None:
    assert decisions((R, 0, 1), (C, 0.5, 6), frontier=100)[0].fate is Outcome.MATCHED
    assert decisions((R, 0, 1), (C, 1.5, 6), frontier=1.6) == [Decision(Outcome.ABANDONED, 1, None)]
    assert decisions((R, 0, 1), (C, 1.5, 6), frontier=7.5) == [Decision(Outcome.ABANDONED, 1, None)]
    assert decisions((R, 0, 1), (C, 1.5, 6), frontier=7.6)[1] == Decision(Outcome.ORPHANED, None, 2)
    assert decisions((R, 0, 6), (C, 5, 6)) == [Decision(Outcome.MATCHED, 1, 2)]


def test_a_completion_that_came_first_meets_only_a_request_within_the_requests_timeout() -> None:
    assert decisions((C, 0, 6), (R, 1, 1)) == [Decision(Outcome.MATCHED, 2, 1)]
    assert decisions((C, 0, 6), (R, 2, 1)) == []
    assert decisions((C, 0, 6), (U, 2, 1)) == [Decision(Outcome.MATCHED, 2, 2)]


def test_a_matched_completion_supersedes_only_within_the_timeout_of_its_request() -> None:
    again = decisions((R, 0, 1), (C, 0.5, 6), (R, 3, 1), (C, 3.5, 6))
    assert again == [Decision(Outcome.MATCHED, 1, 2), Decision(Outcome.MATCHED, 3, 4)]


def test_a_row_keeps_the_timeout_of_its_arrival() -> None:
    # A completion that waited 2 s is over at 2 s, and a request that would wait 6 s meets it no later.
    assert decisions((C, 0, 2), (R, 2, 6)) == [Decision(Outcome.MATCHED, 2, 1)]
    assert decisions((C, 0, 2), (R, 3, 6), frontier=100)[0].fate is Outcome.ORPHANED
    assert decisions((R, 0, 6), (C, 5, 2)) == [Decision(Outcome.MATCHED, 1, 2)]


@pytest.mark.parametrize("apart_s", [0, 0.001, 1, 1.001, 7])
def test_a_key_of_a_whole_batch_is_folded_in_linear_time(apart_s: float) -> None:
    events: list[Event] = [((R, C)[n % 2], n * apart_s, (1, 6)[n % 2]) for n in range(20_000)]
    _, decided = step((), rows_of(*events), None)
    assert len({lsn for d in decided for lsn in (d.request_lsn, d.completion_lsn)}) <= len(events) + 1


@pytest.mark.parametrize(
    ("events", "decided"),
    [
        # An error and then the answer: decided when that comes.
        ([(U, 0, 3, LEAST), (U, 1)], [(Outcome.MATCHED, 2, 2), (Outcome.SUPERSEDED, 1, 1)]),
        ([(R, 0), (C, 1, 3, LEAST), (C, 2)], [(Outcome.SUPERSEDED, None, 2), (Outcome.MATCHED, 1, 3)]),
        ([(R, 0), (U, 1, 3, LEAST), (U, 2)], [(Outcome.SUPERSEDED, 2, 2), (Outcome.MATCHED, 1, 3)]),
        # Nothing better comes: the best that did, when the request is over.
        ([(R, 0), (C, 1, 3, LEAST), (C, 2, 3, LESSER)], [(Outcome.SUPERSEDED, None, 2), (Outcome.MATCHED, 1, 3)]),
        ([(R, 0), (C, 1, 3, LESSER), (C, 2, 3, LEAST)], [(Outcome.SUPERSEDED, None, 3), (Outcome.MATCHED, 1, 2)]),
        ([(U, 0, 3, LEAST)], [(Outcome.MATCHED, 1, 1)]),
        # What comes after that is too late for the stream.
        ([(R, 0), (C, 1, 3, LEAST), (C, 3.5)], [(Outcome.SUPERSEDED, None, 3), (Outcome.MATCHED, 1, 2)]),
    ],
)
def test_the_best_report_that_comes_while_the_request_waits_counts(
    events: list[Event], decided: list[tuple[Outcome, int | None, int | None]]
) -> None:
    assert decisions(*events, frontier=100) == [Decision(*each) for each in decided]


def test_a_lesser_report_is_not_decided_before_its_request_times_out() -> None:
    assert decisions((R, 0), (C, 2, 3, LEAST), frontier=3) == []
    assert decisions((R, 0), (C, 2, 3, LEAST), frontier=3.000001) == [Decision(Outcome.MATCHED, 1, 2)]


def test_a_key_of_thousands_of_lesser_reports_is_folded_in_a_moment() -> None:
    rows = [Row(lsn, U, at(lsn / 10_000), at(TIMEOUT_S), LEAST, lsn) for lsn in range(1, 20_001)]
    _, decided = step((), rows, at(100))
    assert Counter(decision.fate for decision in decided) == {Outcome.SUPERSEDED: 19_999, Outcome.MATCHED: 1}
