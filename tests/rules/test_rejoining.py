"""What was given up and belongs together: the rule beside one that tries every pair, turned round, and cut anywhere."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.joining import Side
from metering.rejoining import Decided, rejoin
from tests.simulation.oracle_of_pairs import Event, answered

REQUEST, COMPLETION = Side.REQUEST, Side.COMPLETION
REACH = st.sampled_from([0, 1, 3, 10, 100])
KNOWN = st.tuples(
    *(st.sampled_from([REQUEST, COMPLETION]), st.integers(0, 20), st.integers(0, 3), st.integers(0, 4)),
    *(st.sampled_from([0, 0, 1, 5]), st.integers(0, 2), st.binary(min_size=1, max_size=1)),
)
"""Side, first reception, whether it was given up and is late, how long after the one before it was received, when it
occurred, and its identity: all are of one length, as digests are."""


def rows_of(drawn: list[tuple[Side, int, int, int, int, int, bytes]]) -> list[Decided]:
    rows, received = [], 0
    for lsn, (side, at, kind, late, after, occurred, identity) in enumerate(drawn, 1):
        received += after
        rows.append(Decided(lsn, side, at, kind > 0, late == 0, received, occurred, identity))
    return sorted(rows, key=lambda row: (row.received_us, row.at, row.side is COMPLETION, row.lsn))


ROWS = st.lists(KNOWN, max_size=14).map(rows_of)
"""Rows as they were received, first received at any time: each may be a dead letter that came back. A quarter is
matched."""


def pairs(rows: list[Decided], reach: int) -> set[tuple[int, int]]:
    found = list(rejoin(rows, reach))
    assert len({lsn for pair in found for lsn in pair}) == 2 * len(found)
    return set(found)


@settings(max_examples=400)
@given(ROWS, REACH)
def test_oracle_the_pairs_are_those_of_a_search_of_every_pair(rows: list[Decided], reach: int) -> None:
    events = [
        Event(
            row.lsn,
            row.side is REQUEST,
            row.first_received_us,
            not row.is_alone,
            row.is_late,
            row.received_us,
            row.occurred_us,
            row.identity,
        )
        for row in rows
    ]
    assert pairs(rows, reach) == set(answered(events, reach).items())


@settings(max_examples=400)
@given(ROWS, REACH)
def test_a_history_turned_round_has_the_same_pairs_turned_round(rows: list[Decided], reach: int) -> None:
    """Requests are completions and time runs backwards: neither side is preferred."""
    number = {row.lsn: at for at, row in enumerate(rows)}
    straight = [replace(row, received_us=number[row.lsn], identity=b"") for row in rows]
    turned = [
        replace(row, side=row.side.other, first_received_us=-row.first_received_us, occurred_us=-row.occurred_us)
        for row in straight
    ]
    rows = straight
    assert pairs(turned, reach) == {(completion, request) for request, completion in pairs(rows, reach)}


@settings(max_examples=400)
@given(ROWS, REACH, st.data())
def test_a_rejoined_pair_stays_joined_when_more_arrives(rows: list[Decided], reach: int, data: st.DataObject) -> None:
    """Audits at any moments, each of which leaves the pairs of those before, make the pairs of one at the end."""
    rows = sorted(rows, key=lambda row: row.is_late)
    standing: set[tuple[int, int]] = set()
    for end in [*sorted(data.draw(st.sets(st.integers(0, len(rows))))), len(rows)]:
        taken = {lsn for pair in standing for lsn in pair}
        standing |= pairs([row for row in rows[:end] if row.lsn not in taken], reach)
    assert standing == pairs(rows, reach)


@given(ROWS, REACH, st.randoms())
def test_the_pairs_do_not_depend_on_the_order_in_which_rows_are_read(
    rows: list[Decided], reach: int, chance: random.Random
) -> None:
    assert pairs(chance.sample(rows, len(rows)), reach) == pairs(rows, reach)


@settings(max_examples=400)
@given(ROWS, REACH, st.randoms())
def test_the_order_in_which_rows_of_one_instant_arrive_changes_no_pair(
    rows: list[Decided], reach: int, chance: random.Random
) -> None:
    """A producer's retry, another partition or the cut of a batch gives the rows of one instant other lsns."""
    rows = [replace(row, identity=bytes([row.lsn])) for row in rows]
    lsns = chance.sample([row.lsn for row in rows], len(rows))
    again = [replace(row, lsn=lsn) for row, lsn in zip(rows, lsns, strict=True)]

    def events(known: list[Decided]) -> set[tuple[bytes, bytes]]:
        named = {row.lsn: row.identity for row in known}
        return {(named[request], named[completion]) for request, completion in pairs(known, reach)}

    assert events(again) == events(rows)


def history(text: str) -> list[Decided]:
    """Rows in the order of arrival: r or c, upper case if it was matched, and when it was first received."""
    return [
        Decided(
            lsn,
            REQUEST if word[0] in "rR" else COMPLETION,
            int(word[1:]),
            is_alone=word[0].islower(),
            received_us=lsn,
        )
        for lsn, word in enumerate(text.split(), 1)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("r1 r20 c31", {(2, 3)}, id="the latest request before it"),
        pytest.param("r1 r20 c31 c32", {(2, 3), (1, 4)}, id="the next one for the next completion"),
        pytest.param("c1 r20 r31", {(2, 1)}, id="else the earliest request after it"),
        pytest.param("c1 r0", {(2, 1)}, id="a request that was a dead letter comes back"),
        pytest.param("c2 c5 r0", {(3, 1)}, id="and is answered by the earliest completion after it"),
        pytest.param("r1 c40 r39", {(1, 2)}, id="a pair stays one when a nearer request comes back"),
        pytest.param("r0 c101", set(), id="out of reach before"),
        pytest.param("c0 r101", set(), id="out of reach after"),
        pytest.param("r1 R20 C20 c31", set(), id="never across a match"),
        pytest.param("R1 C1 c5 r9", set(), id="a second report of a match is not that of the next request"),
        pytest.param("R1 C1 c5 r4", {(4, 3)}, id="but of its own request that comes back"),
        pytest.param("R20 C20 c5 r4", {(4, 3)}, id="however long after a match of the same key"),
        pytest.param("r1 r1 c5", {(2, 3)}, id="of one instant and nothing else that differs the later row"),
    ],
)
def test_a_completion_answers(text: str, found: set[tuple[int, int]]) -> None:
    assert pairs(history(text), 100) == found


def test_a_key_with_very_many_rows_takes_no_more_than_a_little_each() -> None:
    rows = [Decided(lsn, REQUEST if lsn <= 50_000 else COMPLETION, lsn, is_alone=True) for lsn in range(1, 100_001)]
    begun = time.thread_time()
    assert len(pairs(rows, 10**9)) == 50_000
    assert time.thread_time() - begun < 5
