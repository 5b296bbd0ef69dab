"""How requests meet their completions.

Pairing is a fold over the rows of one key in lsn order. Only a row that *won* its side can meet later ones, and only
ones within its timeout, so a winner older than the frontier by more than that may be forgotten. joins decides
keys that nobody contests as columns (`pairs`); all others are folded here. What the stream gave up may be one pair
all the same: the audit joins it by `rejoin`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from metering.words import Outcome


class Side(StrEnum):
    """What a row reports of a request: that it began, that it ended, or both at once."""

    REQUEST = "request"
    COMPLETION = "completion"
    BOTH = "both"

    @property
    def other(self) -> Side:
        """The side that this one waits for."""
        return Side.COMPLETION if self is Side.REQUEST else Side.REQUEST


@dataclass(frozen=True, order=True)
class Row:
    """An accepted event of one key (account, request_id): when it was received, and how long it waits."""

    lsn: int
    side: Side
    received_us: int
    timeout_us: int


@dataclass(frozen=True)
class Winner:
    """A row that counts for its side. `partner` is the lsn it was matched with; None while it waits.

    Once matched, both rows of a pair have the timeout within which they met.
    """

    lsn: int
    side: Side
    received_us: int
    timeout_us: int
    partner: int | None = None

    def near(self, row: Row) -> bool:
        """Whether `row` came within the winner's timeout; a request that joins a completion, within its own too."""
        within_us = self.timeout_us
        if self.partner is None and self.side is Side.COMPLETION and row.side is not Side.COMPLETION:
            within_us = min(within_us, row.timeout_us)
        return abs(self.received_us - row.received_us) <= within_us

    def over(self, frontier_us: int) -> bool:
        """Whether nothing that is received from now on can be near."""
        return self.received_us + self.timeout_us < frontier_us


@dataclass(frozen=True)
class Decision:
    """One outcome and the rows it names."""

    fate: Outcome
    request_lsn: int | None
    completion_lsn: int | None


class Winners:
    """The winners of one key, found by time: a key of any number of rows is folded in linear time.

    They stand in places as wide as their timeout, and two of one side and timeout are seldom nearer than it: so what is
    near a row is in three places per timeout.
    """

    def __init__(self, winners: Iterable[Winner] = ()) -> None:
        self._places: dict[tuple[Side, int, int], list[Winner]] = {}
        self._timeouts_us: set[int] = set()
        for winner in winners:
            self.add(winner)

    def __iter__(self) -> Iterator[Winner]:
        return (winner for place in self._places.values() for winner in place)

    def add(self, winner: Winner) -> None:
        """A row has won its side."""
        self._timeouts_us.add(winner.timeout_us)
        self._places.setdefault(_place(winner), []).append(winner)

    def match(self, winner: Winner, partner: int, timeout_us: int) -> None:
        """A waiting winner has met its partner."""
        self._places[_place(winner)].remove(winner)
        self.add(replace(winner, partner=partner, timeout_us=timeout_us))

    def near(self, row: Row) -> list[Winner]:
        """All that came within the timeout of `row`."""
        return [
            winner
            for timeout_us in self._timeouts_us
            for side in (Side.REQUEST, Side.COMPLETION)
            for place in range(row.received_us // timeout_us - 1, row.received_us // timeout_us + 2)
            for winner in self._places.get((side, timeout_us, place), ())
            if winner.near(row)
        ]


def _place(winner: Winner) -> tuple[Side, int, int]:
    return winner.side, winner.timeout_us, winner.received_us // winner.timeout_us


def fold(winners: Winners, row: Row) -> Decision | None:
    """Take `row` among the winners, or not; what is decided at once: a match, or that the row is superseded."""
    near = winners.near(row)
    side = _acts_as(row.side, near)
    if side is Side.BOTH:
        for each in (Side.REQUEST, Side.COMPLETION):
            winners.add(Winner(row.lsn, each, row.received_us, row.timeout_us, row.lsn))
        return Decision(Outcome.MATCHED, row.lsn, row.lsn)
    partner = min((w for w in near if w.side is side.other and w.partner is None), key=lambda w: w.lsn, default=None)
    if any(winner.side is side for winner in near) or (row.side is Side.BOTH and partner is None):
        return Decision(
            Outcome.SUPERSEDED,
            row.lsn if row.side is not Side.COMPLETION else None,
            row.lsn if row.side is not Side.REQUEST else None,
        )
    if partner is None:
        winners.add(Winner(row.lsn, side, row.received_us, row.timeout_us))
        return None
    within_us = partner.timeout_us if side is Side.COMPLETION else min(row.timeout_us, partner.timeout_us)
    winners.match(partner, row.lsn, within_us)
    winners.add(Winner(row.lsn, side, row.received_us, within_us, partner.lsn))
    request, completion = (row.lsn, partner.lsn) if side is Side.REQUEST else (partner.lsn, row.lsn)
    return Decision(Outcome.MATCHED, request, completion)


def _acts_as(side: Side, near: list[Winner]) -> Side:
    """`usage.v1` completes a request that is there already, or is the request of a completion that is."""
    if side is not Side.BOTH:
        return side
    if any(winner.side is Side.REQUEST for winner in near):
        return Side.COMPLETION
    return Side.REQUEST if near else Side.BOTH


def fold_all(memory: Iterable[Winner], rows: Iterable[Row]) -> tuple[Winners, list[Decision]]:
    """The winners after `rows` of one key, and what was decided at once."""
    winners = Winners(memory)
    decided = [fold(winners, row) for row in sorted(rows)]
    return winners, [decision for decision in decided if decision is not None]


def step(
    memory: Iterable[Winner], rows: Iterable[Row], frontier_us: int | None
) -> tuple[tuple[Winner, ...], list[Decision]]:
    """One batch of one key: what to remember, and every outcome that `rows` and the frontier decide.

    `frontier_us` is None until there is one: then nobody gives up waiting.
    """
    winners, decisions = fold_all(memory, rows)
    if frontier_us is None:
        return tuple(winners), decisions
    over = [winner for winner in winners if winner.over(frontier_us)]
    decisions += [_alone(winner) for winner in over if winner.partner is None]
    return tuple(winner for winner in winners if not winner.over(frontier_us)), decisions


def _alone(winner: Winner) -> Decision:
    if winner.side is Side.REQUEST:
        return Decision(Outcome.ABANDONED, winner.lsn, None)
    return Decision(Outcome.ORPHANED, None, winner.lsn)


@dataclass(frozen=True)
class Decided:
    """A row that joins decided: it was matched, or given up (`is_alone`: abandoned or orphaned).

    `first_received_us`: of a redriven dead letter or a backfilled record its first reception, else its reception.
    `is_late`: a contract that came after it decided it.
    """

    lsn: int
    side: Side
    first_received_us: int
    is_alone: bool
    is_late: bool = False


def rejoin(rows: Iterable[Decided], reach_us: int) -> Iterator[tuple[int, int]]:
    """The rows of one key → the pairs (request lsn, completion lsn) among those that were given up, each row once.

    A completion answers the latest request that was first received before it, else the earliest one after it; a
    request is answered by the earliest completion after it, else by the latest one before it. Both are at most
    `reach_us` apart, and no match lies between them. A completion that precedes its request has no match of the key
    within reach, either: it rather reports that match once more.

    Rows are taken in lsn order, late ones last, so a pair stays one whatever becomes known later.
    """
    matched_us: list[int] = []
    waiting: dict[Side, list[tuple[int, int]]] = {Side.REQUEST: [], Side.COMPLETION: []}
    for row in sorted(rows, key=lambda row: (row.is_late, row.lsn)):
        if not row.is_alone:
            insort(matched_us, row.first_received_us)
            continue
        candidates = waiting[row.side.other]
        place = _partner(row, candidates, matched_us, reach_us)
        if place is None:
            insort(waiting[row.side], (_DIRECTION[row.side] * row.first_received_us, row.lsn))
            continue
        _, partner = candidates.pop(place)
        yield (row.lsn, partner) if row.side is Side.REQUEST else (partner, row.lsn)


_DIRECTION = {Side.REQUEST: 1, Side.COMPLETION: -1}
"""Requests wait by time and completions by time reversed: whichever comes, what precedes its place is in causal order
with it, the nearest one last."""


def _partner(row: Decided, candidates: list[tuple[int, int]], matched_us: list[int], reach_us: int) -> int | None:
    """The place of the row's partner among `candidates` of the other side (by time in their direction, lsn)."""
    direction, at_us = _DIRECTION[row.side.other], row.first_received_us
    place = bisect_left(candidates, (direction * at_us + 1, 0))
    if place > 0:
        first_us, last_us = sorted((at_us, direction * candidates[place - 1][0]))
        has_match = bisect_left(matched_us, last_us) > bisect_right(matched_us, first_us)
        if last_us - first_us <= reach_us and not has_match:
            return place - 1
    if place < len(candidates):
        first_us, last_us = sorted((at_us, direction * candidates[place][0]))
        has_match = bisect_right(matched_us, last_us + reach_us) > bisect_left(matched_us, first_us - reach_us)
        if last_us - first_us <= reach_us and not has_match:
            return place
    return None
