"""A meter of a period bills a day or month by its members: their number, the least, the greatest, or the latest.

The quantity is a function of the set of members. So the order of arrival and the cut into batches change nothing, and a
reversal removes its member instead of subtracting a quantity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from heapq import heapify, heappop, heappush


class Aggregation(StrEnum):
    """How the quantity of a period follows from its members."""

    UNIQUE = "unique"
    """The number of different texts."""
    MIN = "min"
    """The least number."""
    MAX = "max"
    """The greatest number."""
    LATEST = "latest"
    """The number of the latest event; of several at one instant the greatest."""

    def order(self, member: Member) -> tuple[datetime, Decimal]:
        """The number of the last member in this order is billed."""
        # Unary minus would round to the context's precision.
        return member.occurred_at, member.quantity.copy_negate() if self is Aggregation.MIN else member.quantity


class Period(StrEnum):
    """A day or month of the account's calendar."""

    DAY = "day"
    MONTH = "month"

    def first_day(self, day: date) -> date:
        """The first day of the period that contains a day."""
        return day.replace(day=1) if self is Period.MONTH else day

    def following(self, first_day: date) -> date:
        """The first day of the next period."""
        days = timedelta(days=31 if self is Period.MONTH else 1)
        return self.first_day(first_day + days)


@dataclass(frozen=True)
class PeriodMeter:
    """How a meter bills whole periods."""

    aggregation: Aggregation
    column: str
    """A column of events: a text or number whose different values are counted, or a number."""
    period: Period

    @property
    def is_of_numbers(self) -> bool:
        """Whether one of the column's numbers is billed, instead of a count of values."""
        return self.aggregation is not Aggregation.UNIQUE


NEVER = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Member:
    """A member of a period."""

    text: str = ""
    """What is counted once; empty for numbers."""
    quantity: Decimal = Decimal(0)
    """The number; 0 for texts."""
    occurred_at: datetime = NEVER
    """The event's time where the latest number is billed; otherwise NEVER."""


def quantity_of(aggregation: Aggregation, counts: Mapping[Member, int]) -> Decimal:
    """The quantity of a period. `counts`: of each member the rows of usage that added it less those that removed it.

    It is 0 without members.
    """
    present = [member for member, count in counts.items() if count > 0]
    if aggregation is Aggregation.UNIQUE:
        return Decimal(len(present))
    return max(present, key=aggregation.order).quantity if present else Decimal(0)


class Members:
    """The members of a period, changed row by row, with its quantity after each.

    `others` represents the members that do not change: their number, or the one that would be billed (None:
    there are none).
    """

    def __init__(self, aggregation: Aggregation, counts: Mapping[Member, int], others: int | Member | None) -> None:
        self._counts = dict(counts)
        self._others = others
        self._aggregation = aggregation
        self._present = {member for member, count in counts.items() if count > 0}
        self._ordered = [self._reversed(member) for member in self._present]
        heapify(self._ordered)

    def add(self, member: Member, rows: int) -> None:
        """Apply rows of usage that add the member, or remove it (below 0)."""
        count = self._counts[member] = self._counts.get(member, 0) + rows
        if count <= 0:
            self._present.discard(member)
        elif member not in self._present:
            self._present.add(member)
            heappush(self._ordered, self._reversed(member))

    @property
    def is_empty(self) -> bool:
        """Whether the period has no member."""
        return not self._present and self._others in (0, None)

    @property
    def quantity(self) -> Decimal:
        """The quantity of the period."""
        if self._aggregation is Aggregation.UNIQUE:
            assert isinstance(self._others, int)
            return Decimal(len(self._present) + self._others)
        return max(self._last(), key=self._aggregation.order, default=Member()).quantity

    def _reversed(self, member: Member) -> _Reversed:
        return _Reversed(self._aggregation.order(member), member)

    def _last(self) -> Iterator[Member]:
        while self._ordered and self._ordered[0].member not in self._present:
            heappop(self._ordered)
        if self._ordered:
            yield self._ordered[0].member
        if isinstance(self._others, Member):
            yield self._others


@dataclass(frozen=True)
class _Reversed:
    """Places the last member in the order first in a heap."""

    order: tuple[datetime, Decimal]
    member: Member

    def __lt__(self, other: _Reversed) -> bool:
        return self.order > other.order


def counted(rows: Iterable[tuple[Member, int]]) -> dict[Member, int]:
    """Members and signs of rows → the count of each member."""
    counts: dict[Member, int] = {}
    for member, sign in rows:
        counts[member] = counts.get(member, 0) + sign
    return counts
