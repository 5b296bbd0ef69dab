"""The order of `events.ordered`: however the journal is cut into steps, it is that of the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.billing.ordered.order import (
    EVENTS,
    KEY,
    NEVER_US,
    RUNS,
    Cursor,
    Wait,
    generations,
    keyed,
    upcoming,
    waiting,
)
from tests.ordered_events import SECOND, Ordered, Row, expected, journals

NOON = 12 * 3_600 * SECOND


def events_of(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame([(r.lsn, r.event_us) for r in rows if r.event_us is not None], schema=EVENTS, orient="row")


def runs_of(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame([(row.lsn, row.frontier_us) for row in rows], schema=RUNS, orient="row")


def in_steps(commits: Sequence[Sequence[Row]], ends: Sequence[int], waits: Sequence[Wait], step: int) -> list[Ordered]:
    """What is sent by steps of so many events, of which each sees the journal as it is after one of the commits."""
    next_lsn, before_us, waiting_from = 1, NEVER_US, 1
    sent: list[Ordered] = []
    cursor: Cursor | None = None
    for end in ends:
        rows = [row for commit in commits[:end] for row in commit]
        whole = generations(runs_of([r for r in rows if r.lsn >= next_lsn]), next_lsn, before_us, waits)
        if whole is None:
            continue
        # Nobody reads what is before the lowest row that waits.
        events = events_of([row for row in rows if row.lsn >= waiting_from])
        found = keyed(events, whole, cursor).sort(KEY)
        for lsn, is_late in found.head(step).select("lsn", "is_late").iter_rows():
            sent.append(Ordered(len(sent) + 1, lsn, is_late))
        if len(found) > step:
            generation, order_us, lsn = found.select(KEY).row(step - 1)
            cursor = generation, order_us, lsn
            continue
        lowest = waiting(events, whole)
        next_lsn, before_us, cursor = whole.next_lsn, whole.watermark_us, None
        waiting_from = whole.next_lsn if lowest is None else lowest
    return sent


WAITS = st.builds(
    lambda first, later_from, later: (Wait(1, first), Wait(later_from, later)),
    st.integers(0, 40),
    st.integers(1, 40),
    st.integers(0, 40),
)
"""A wait, and another one from some lsn on."""


@given(journals(), st.data(), st.integers(1, 5), WAITS)
def test_any_cut_into_steps_gives_the_order_of_the_oracle(
    commits: list[list[Row]], data: st.DataObject, step: int, waits: tuple[Wait, Wait]
) -> None:
    rows = [row for commit in commits for row in commit]
    first, later = waits
    wanted = expected(rows, lambda lsn: later.seconds if lsn >= later.first_lsn else first.seconds)
    seen = data.draw(st.lists(st.integers(1, len(commits)), max_size=30).map(sorted))
    sent = in_steps(commits, seen, waits, step)
    assert sent == wanted[: len(sent)], "what is sent so far is how the whole begins"
    assert in_steps(commits, [*seen, *[len(commits)] * (len(rows) + 1)], waits, step) == wanted


@given(journals(), st.integers(0, 40))
def test_events_in_time_are_in_the_order_of_their_time_and_late_ones_are_behind_what_was_sent(
    commits: list[list[Row]], wait: int
) -> None:
    rows = {row.lsn: row for commit in commits for row in commit}
    sent = in_steps(commits, [len(commits)] * (len(rows) + 1), (Wait(1, wait),), 1_000)
    times = {event.lsn: rows[event.lsn].event_us or 0 for event in sent}
    places = [(times[event.lsn], event.lsn) for event in sent if not event.is_late]
    assert places == sorted(places)
    last_us = max(row.frontier_us or 0 for row in rows.values()) - wait * SECOND
    for number, event in enumerate(sent):
        known = [row.frontier_us for row in rows.values() if row.lsn < event.lsn and row.frontier_us is not None]
        # Rows of one F are a generation: only a lower one was reached before it.
        before = [frontier_us for frontier_us in known if frontier_us != rows[event.lsn].frontier_us]
        assert event.is_late == bool(before and times[event.lsn] < max(before) - wait * SECOND)
        if event.is_late:
            assert all(times[later.lsn] > times[event.lsn] for later in sent[number:] if not later.is_late)
        else:
            assert times[event.lsn] < last_us


def test_a_time_at_the_watermark_is_in_time_and_a_microsecond_before_it_is_late() -> None:
    rows = [Row(1, None, NOON), Row(2, NOON, NOON + 1), Row(3, NOON - 1, NOON + 1), Row(4, None, NOON + 2)]
    sent = in_steps([rows], [1, 1], (Wait(1, 0),), 10)
    assert sent == [Ordered(1, 3, is_late=True), Ordered(2, 2, is_late=False)]


@given(journals(), st.integers(1, 12), WAITS, st.data())
def test_what_is_upcoming_begins_with_what_is_sent_next_and_goes_on_with_all_that_waits(
    commits: list[list[Row]], end: int, waits: tuple[Wait, Wait], data: st.DataObject
) -> None:
    rows = [row for commit in commits for row in commit]
    seen = runs_of([row for commit in commits[:end] for row in commit])
    whole = generations(seen, 1, NEVER_US, waits)
    if whole is None:
        return
    events = events_of(rows)
    planned = keyed(events, whole, None).sort(KEY)
    number = data.draw(st.integers(0, len(planned)))
    cursor = planned.select(KEY).row(number - 1) if number else None
    found = upcoming(events, whole, cursor)["lsn"].to_list()
    assert found[: len(planned) - number] == planned["lsn"].to_list()[number:]
    assert sorted(found) == sorted({*events["lsn"]} - {*planned["lsn"].head(number)})
