"""How requests meet their completions.

Pairing is a fold over the rows of one key in lsn order. Only a row that *won* its side can meet later rows, and only
rows within its timeout, so a winner older than the frontier by more than that may be forgotten. joins decides
uncontested keys as columns (`pairs`); all others are folded here.

A report that a better one may replace (`merit` below FINAL) waits as long as its request. The rows of a key that wait
are those that no outcome names (`waiting`), so a start needs no other state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from metering.vocabulary import Outcome


class Side(StrEnum):
    """What a row reports of a request: that it began, that it ended, or both at once."""

    REQUEST = "request"
    COMPLETION = "completion"
    BOTH = "both"

    @property
    def other(self) -> Side:
        """The side that this one waits for."""
        return Side.COMPLETION if self is Side.REQUEST else Side.REQUEST


FINAL = 15
"""The `merit` of a report that nothing beats, and of rows for which the first one counts."""


@dataclass(frozen=True, order=True)
class Row:
    """An accepted event of one key (account, request_id): when it was received, and how long it waits.

    `merit`: that of its report (`ranking.merit`); of two lesser ones with the same the later counts (`occurred_us`).
    """

    lsn: int
    side: Side
    received_us: int
    timeout_us: int
    merit: int = FINAL
    occurred_us: int = 0

    @property
    def value(self) -> tuple[int, int]:
        """The greater report counts; of equal ones the first."""
        return self.merit, self.occurred_us if self.merit < FINAL else 0


@dataclass(frozen=True)
class Winner:
    """A row that counts for its side. `partner` is the lsn it was matched with; None while it waits.

    Once matched, both rows of a pair have the timeout within which they met. A lesser report (`value` below FINAL) that
    answers a request (`answers_lsn`) waits until that is over: a better one takes its place. An event of both sides
    (`is_both`) that is a lesser one asks itself.
    """

    lsn: int
    side: Side
    received_us: int
    timeout_us: int
    partner: int | None = None
    value: tuple[int, int] = (FINAL, 0)
    is_both: bool = False
    answers_lsn: int | None = None

    def near(self, row: Row) -> bool:
        """Whether `row` came within the winner's timeout; a request that joins a completion, within its own too."""
        within_us = self.timeout_us
        if self.is_waiting and self.side is Side.COMPLETION and row.side is not Side.COMPLETION:
            within_us = min(within_us, row.timeout_us)
        return abs(self.received_us - row.received_us) <= within_us

    def over(self, frontier_us: int) -> bool:
        """Whether nothing that is received from now on can be near."""
        return self.received_us + self.timeout_us < frontier_us

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the other side; a request may have a report that waits with it."""
        return self.partner is None and self.answers_lsn is None

    @property
    def is_lesser(self) -> bool:
        """Whether a better report may take its place."""
        return self.partner is None and self.side is Side.COMPLETION and self.value < (FINAL, 0)


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
        self._waiting: dict[tuple[Side, int], Winner] = {}
        self._reports: dict[int, Winner] = {}
        for winner in winners:
            self.add(winner)

    def __iter__(self) -> Iterator[Winner]:
        return (winner for place in self._places.values() for winner in place)

    def add(self, winner: Winner) -> None:
        """A row has won its side."""
        self._timeouts_us.add(winner.timeout_us)
        self._places.setdefault(_place(winner), []).append(winner)
        if winner.partner is None:
            self._waiting[winner.side, winner.lsn] = winner
        if winner.answers_lsn is not None:
            self._reports[winner.answers_lsn] = winner

    def remove(self, winner: Winner) -> None:
        """It has won nothing any more."""
        self._places[_place(winner)].remove(winner)
        self._waiting.pop((winner.side, winner.lsn), None)
        if winner.answers_lsn is not None:
            self._reports.pop(winner.answers_lsn)

    def match(self, request: Winner, report: Winner, timeout_us: int) -> list[Decision]:
        """Two that wait are one pair; of two events of both sides the report is one by itself."""
        decided = [_matched(request.lsn, report.lsn)]
        for winner in (request, report):
            if self._waiting.get((winner.side, winner.lsn)) == winner:
                self.remove(winner)
        if request.is_both and report.is_both:
            decided = [_matched(report.lsn, report.lsn)]
            decided += [] if request.lsn == report.lsn else [_superseded(request)]
            request = replace(report, side=Side.REQUEST)
            timeout_us = report.timeout_us
        for winner, partner in ((request, report), (report, request)):
            self.add(replace(winner, timeout_us=timeout_us, partner=partner.lsn, value=(FINAL, 0), answers_lsn=None))
        return decided

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

    def request_of(self, report: Winner) -> Winner | None:
        """The request that a lesser report answers; both wait."""
        return None if report.answers_lsn is None else self._waiting[Side.REQUEST, report.answers_lsn]

    def report_of(self, request: Winner) -> Winner | None:
        """The best report so far that answers a request that waits."""
        return self._reports.get(request.lsn)


def _place(winner: Winner) -> tuple[Side, int, int]:
    return winner.side, winner.timeout_us, winner.received_us // winner.timeout_us


def fold(winners: Winners, row: Row) -> list[Decision]:
    """Take `row` among the winners, or not; what is decided at once: a match, and what is superseded."""
    near = winners.near(row)
    side = _acts_as(row.side, near)
    if side is Side.REQUEST:
        return _ask(winners, row, near)
    if side is Side.COMPLETION:
        return _report(winners, row, near)
    return _ask_itself(winners, row)


def _acts_as(side: Side, near: list[Winner]) -> Side:
    """`usage.v1` completes a request that is there already, or is the request of a completion that is."""
    if side is not Side.BOTH:
        return side
    if any(winner.side is Side.REQUEST for winner in near):
        return Side.COMPLETION
    return Side.REQUEST if near else Side.BOTH


def _ask_itself(winners: Winners, row: Row) -> list[Decision]:
    """An event of both sides: a lesser one waits for a better one."""
    request, report = _winner(row, Side.REQUEST, row.timeout_us), _winner(row, Side.COMPLETION, row.timeout_us, row.lsn)
    if not report.is_lesser:
        return winners.match(request, report, row.timeout_us)
    winners.add(request)
    winners.add(report)
    return []


def _ask(winners: Winners, row: Row, near: list[Winner]) -> list[Decision]:
    """A request, or what is the request of a completion; it gets the best report that waits for one."""
    reports = [winner for winner in near if winner.side is Side.COMPLETION and winner.is_waiting]
    is_taken = any(winner.side is Side.REQUEST or _answers_itself(winners, winner) for winner in near)
    if is_taken or (row.side is Side.BOTH and not reports):
        return [_superseded(row)]
    if not reports:
        winners.add(_winner(row, Side.REQUEST, row.timeout_us))
        return []
    best = max(reports, key=lambda winner: (winner.value, -winner.lsn))
    if row.side is Side.BOTH and row.value > best.value:
        return [*_removed(winners, reports), *_ask_itself(winners, row)]
    request, within_us = _winner(row, Side.REQUEST, row.timeout_us), min(row.timeout_us, best.timeout_us)
    # Of a completion that waits less than its request a better one would come too late.
    if not best.is_lesser or within_us < row.timeout_us:
        return winners.match(request, best, within_us)
    decided = _removed(winners, [winner for winner in reports if winner is not best])
    winners.remove(best)
    winners.add(request)
    winners.add(replace(best, timeout_us=within_us, answers_lsn=row.lsn))
    return decided


def _report(winners: Winners, row: Row, near: list[Winner]) -> list[Decision]:
    """A completion, or what completes a request: it takes the place of lesser ones, and decides if nothing beats it."""
    requests = [winner for winner in near if winner.side is Side.REQUEST and winner.partner is None]
    request = min(requests, key=lambda winner: winner.lsn, default=None)
    rivals = [winner for winner in near if winner.side is Side.COMPLETION]
    before = None if request is None else winners.report_of(request)
    rivals += [] if before is None or before in rivals else [before]
    is_open = all(w.is_lesser and w.value < row.value and winners.request_of(w) in (None, request) for w in rivals)
    if not is_open or (row.side is Side.BOTH and request is None):
        return [_superseded(row)]
    decided = _removed(winners, rivals)
    if request is None:
        winners.add(_winner(row, Side.COMPLETION, row.timeout_us))
        return decided
    # Of two events of both sides the better one is a pair by itself, with its own timeout.
    within_us = row.timeout_us if row.side is Side.BOTH and request.is_both else request.timeout_us
    report = _winner(row, Side.COMPLETION, within_us, request.lsn)
    if not report.is_lesser:
        return [*decided, *winners.match(request, report, within_us)]
    winners.add(report)
    return decided


def _answers_itself(winners: Winners, winner: Winner) -> bool:
    """Whether it is an event of both sides that is the best report of another one."""
    request = winners.request_of(winner)
    return winner.is_both and request is not None and request.is_both


def _winner(row: Row, side: Side, timeout_us: int, answers_lsn: int | None = None) -> Winner:
    value = row.value if side is Side.COMPLETION else (FINAL, 0)
    answers_lsn = answers_lsn if value < (FINAL, 0) else None
    return Winner(row.lsn, side, row.received_us, timeout_us, None, value, row.side is Side.BOTH, answers_lsn)


def _removed(winners: Winners, reports: Iterable[Winner]) -> list[Decision]:
    """A better report has come; an event that is both sides remains a request."""
    gone = list(reports)
    for report in gone:
        winners.remove(report)
    return [_superseded(report) for report in gone if report.answers_lsn != report.lsn]


def _matched(request_lsn: int, completion_lsn: int) -> Decision:
    return Decision(Outcome.MATCHED, request_lsn, completion_lsn)


def _superseded(row: Row | Winner) -> Decision:
    is_both = row.side is Side.BOTH if isinstance(row, Row) else row.is_both
    begins, ends = is_both or row.side is Side.REQUEST, is_both or row.side is Side.COMPLETION
    return Decision(Outcome.SUPERSEDED, row.lsn if begins else None, row.lsn if ends else None)


def fold_all(winners: Winners, rows: Iterable[Row]) -> list[Decision]:
    """Take rows of one key among the winners; what is decided at once."""
    return [decision for row in sorted(rows) for decision in fold(winners, row)]


def waiting(rows: Iterable[Row]) -> tuple[Winner, ...]:
    """What waits of a key, of the rows that no outcome names: a start knows no more of it."""
    winners = Winners()
    fold_all(winners, rows)
    return tuple(winners)


def give_up(winners: Winners, frontier_us: int | None) -> list[Decision]:
    """What the frontier decides: nothing that is received from now on can change it.

    A request whose timeout has passed has the best report that came, or is abandoned; a completion without a request is
    orphaned. `frontier_us` is None until there is one: then nothing is given up.
    """
    if frontier_us is None:
        return []
    decided = []
    for winner in [w for w in winners if w.is_waiting and w.over(frontier_us)]:
        report = winners.report_of(winner)
        if winner.side is Side.COMPLETION:
            decided.append(Decision(Outcome.ORPHANED, None, winner.lsn))
        elif report is None:
            decided.append(Decision(Outcome.ABANDONED, winner.lsn, None))
        else:
            decided += winners.match(winner, report, report.timeout_us)
    return decided


def step(
    memory: Iterable[Winner], rows: Iterable[Row], frontier_us: int | None
) -> tuple[tuple[Winner, ...], list[Decision]]:
    """One batch of one key: what to remember, and every outcome that `rows` and the frontier decide."""
    winners = Winners(memory)
    decided = [*fold_all(winners, rows), *give_up(winners, frontier_us)]
    kept = (w for w in winners if w.answers_lsn is not None or frontier_us is None or not w.over(frontier_us))
    return tuple(kept), decided
