"""Pairs that the stream gave up on: the audit joins them, unless the best report bills."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metering.joining import Side


@dataclass(frozen=True)
class Decided:
    """A row that joins decided: it was matched, or given up (`is_alone`: abandoned or orphaned).

    `first_received_us`: of a redriven dead letter or a backfilled record its first reception, else its reception
    (`received_us`). `is_late`: a contract that came after it decided it. `occurred_us`, `identity`: they order what was
    received at one instant.
    """

    lsn: int
    side: Side
    first_received_us: int
    is_alone: bool
    is_late: bool = False
    received_us: int = 0
    occurred_us: int = 0
    identity: bytes = b""

    @property
    def at(self) -> tuple[int, int, int]:
        """When it was first received; what came at one instant is in the order of its time and identity."""
        return self.first_received_us, self.occurred_us, int.from_bytes(self.identity)

    @property
    def arrival(self) -> tuple[bool, int, tuple[int, int, int], bool, int]:
        """When it became known: as it was received, and not by its lsn, which a producer's retry may exchange."""
        return self.is_late, self.received_us, self.at, self.side is Side.COMPLETION, self.lsn


def rejoin(rows: Iterable[Decided], reach_us: int) -> Iterator[tuple[int, int]]:
    """The rows of one key → the pairs (request lsn, completion lsn) among those that were given up, each row once.

    A completion answers the latest request that was first received before it, else the earliest one after it; a request
    is answered by the earliest completion after it, else by the latest one before it. Both are at most `reach_us`
    apart, and no match lies between them. A completion before its request must have no match of the key within reach
    either: otherwise it is another report of that match. Of one instant, a request comes before a completion unless it
    occurred later; rows of one side are in the order of their time and identity.

    Rows are taken as they were received, late ones last, so a pair stays a pair when more becomes known: all that was
    received before a row was given up is known by then. So the pairs are a function of the set of rows.
    """
    matched_us: list[int] = []
    waiting: dict[Side, list[_Waiting]] = {Side.REQUEST: [], Side.COMPLETION: []}
    for row in sorted(rows, key=lambda row: row.arrival):
        if not row.is_alone:
            insort(matched_us, row.first_received_us)
            continue
        candidates = waiting[row.side.other]
        place = _partner(row, candidates, matched_us, reach_us)
        if place is None:
            direction = _DIRECTION[row.side]
            insort(waiting[row.side], (*(direction * part for part in row.at), row.lsn))
            continue
        *_, partner = candidates.pop(place)
        yield (row.lsn, partner) if row.side is Side.REQUEST else (partner, row.lsn)


_Waiting = tuple[int, ...]
"""`Decided.at` in the direction of its side, and the lsn."""
_DIRECTION = {Side.REQUEST: 1, Side.COMPLETION: -1}
"""Requests wait by time and completions by time reversed: whichever comes, what precedes its place is in causal order
with it, the nearest one last."""


def _partner(row: Decided, candidates: list[_Waiting], matched_us: list[int], reach_us: int) -> int | None:
    """The place of the row's partner among `candidates` of the other side."""
    direction, at_us = _DIRECTION[row.side.other], row.first_received_us
    place = bisect_left(candidates, (direction * at_us, direction * row.occurred_us + 1))
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
