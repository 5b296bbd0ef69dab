"""How requests meet their completions, and which version of a contract or price holds: `resolve` and `price` in Python.

Pairing is a fold over the rows of one key in lsn order. Only a row that *won* its side can meet later ones, and only
ones within the timeout of it, so a winner older than the frontier by more than the timeout may be forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Side(StrEnum):
    """What a row reports of a request: that it began, that it ended, or both at once."""

    REQUEST = "request"
    COMPLETION = "completion"
    BOTH = "both"

    @property
    def other(self) -> Side:
        """The side that this one waits for."""
        return Side.COMPLETION if self is Side.REQUEST else Side.REQUEST


class Fate(StrEnum):
    """The outcome of a row; the same words as `usage.outcome`."""

    MATCHED = "matched"
    ABANDONED = "abandoned"
    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, order=True)
class Row:
    """An accepted event of one key (account, request_id)."""

    lsn: int
    side: Side
    received_at: datetime


@dataclass(frozen=True)
class Winner:
    """A row that counts for its side. `partner` is the lsn it was matched with; None while it waits."""

    lsn: int
    side: Side
    received_at: datetime
    partner: int | None = None

    def near(self, received_at: datetime, timeout: timedelta) -> bool:
        """True when both were received within the timeout of each other."""
        return abs(self.received_at - received_at) <= timeout


@dataclass(frozen=True)
class Decision:
    """One outcome and the rows it names."""

    fate: Fate
    request_lsn: int | None
    completion_lsn: int | None


Winners = tuple[Winner, ...]


def fold(winners: Winners, row: Row, timeout: timedelta) -> tuple[Winners, list[Decision]]:
    """The winners after `row`, and what is decided at once: a match, or that the row is superseded."""
    near = [winner for winner in winners if winner.near(row.received_at, timeout)]
    side = _acts_as(row.side, near)
    if side is Side.BOTH:
        ended = Winner(row.lsn, Side.COMPLETION, row.received_at, row.lsn)
        return (*winners, replace(ended, side=Side.REQUEST), ended), [Decision(Fate.MATCHED, row.lsn, row.lsn)]
    partner = min((w for w in near if w.side is side.other and w.partner is None), key=lambda w: w.lsn, default=None)
    if any(winner.side is side for winner in near) or (row.side is Side.BOTH and partner is None):
        named = (
            row.lsn if row.side is not Side.COMPLETION else None,
            row.lsn if row.side is not Side.REQUEST else None,
        )
        return winners, [Decision(Fate.SUPERSEDED, *named)]
    if partner is None:
        return (*winners, Winner(row.lsn, side, row.received_at)), []
    met = tuple(replace(winner, partner=row.lsn) if winner is partner else winner for winner in winners)
    request, completion = (row.lsn, partner.lsn) if side is Side.REQUEST else (partner.lsn, row.lsn)
    won = Winner(row.lsn, side, row.received_at, partner.lsn)
    return (*met, won), [Decision(Fate.MATCHED, request, completion)]


def _acts_as(side: Side, near: list[Winner]) -> Side:
    """`usage.v1` completes a request that is there already, or is the request of a completion that is."""
    if side is not Side.BOTH:
        return side
    if any(winner.side is Side.REQUEST for winner in near):
        return Side.COMPLETION
    return Side.REQUEST if near else Side.BOTH


def step(
    memory: Winners, rows: Iterable[Row], timeout: timedelta, frontier: datetime | None
) -> tuple[Winners, list[Decision]]:
    """One batch of one key: what to remember, and every outcome that `rows` and the `frontier` decide.

    `frontier` is None until there is one: then nobody gives up waiting.
    """
    winners, decisions = memory, []
    for row in sorted(rows):
        winners, decided = fold(winners, row, timeout)
        decisions += decided
    if frontier is None:
        return winners, decisions
    over = [winner for winner in winners if winner.received_at + timeout < frontier]
    decisions += [_alone(winner) for winner in over if winner.partner is None]
    return tuple(winner for winner in winners if winner not in over), decisions


def _alone(winner: Winner) -> Decision:
    if winner.side is Side.REQUEST:
        return Decision(Fate.ABANDONED, winner.lsn, None)
    return Decision(Fate.ORPHANED, None, winner.lsn)


@dataclass(frozen=True)
class Version(Generic[Value]):
    """A change of one account or price. `value` None: deleted."""

    lsn: int
    effective_from: datetime
    value: Value | None


def account_as_of(versions: Iterable[Version[Value]], event_time: datetime, decided_lsn: int) -> Version[Value] | None:
    """The version of one account that holds at `event_time`, seen from `decided_lsn`; None when none does.

    The very first version holds from the beginning of time, each other one from its `effective_from`. A deletion ends
    the account from its own time on; what comes after it is another life of the account, which takes the place of all
    that was before from the first of its times on.
    """
    visible = sorted((v for v in versions if v.lsn < decided_lsn), key=lambda version: version.lsn)
    begun = [v for number, v in enumerate(visible) if number == 0 or v.effective_from <= event_time]
    deletions = [version.lsn for version in visible if version.value is None]
    lives = [(bisect_left(deletions, version.lsn), version) for version in begun]
    last_life = max((life for life, _ in lives), default=0)
    latest = [version for life, version in lives if life == last_life]
    if any(version.value is None for version in latest):
        return None
    # The first version holds also where its own `effective_from` is the latest.
    return _latest([version for version in latest if version is not visible[0]]) or _latest(latest)


def price_as_of(versions: Iterable[Version[Value]], event_time: datetime, decided_lsn: int) -> Version[Value] | None:
    """The version of one (plan, model, meter, currency) that holds at `event_time`, seen from `decided_lsn`.

    A deletion withdraws what its `effective_from` began, so that the price before it goes on.
    """
    visible = [v for v in versions if v.lsn < decided_lsn and v.effective_from <= event_time]
    newest: dict[datetime, Version[Value]] = {}
    for version in sorted(visible, key=lambda version: version.lsn):
        newest[version.effective_from] = version
    return _latest([version for version in newest.values() if version.value is not None])


def _latest(versions: list[Version[Value]]) -> Version[Value] | None:
    return max(versions, key=lambda version: (version.effective_from, version.lsn), default=None)
