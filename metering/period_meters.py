"""A meter of a period bills what a set of members comes to: how many different ones, the greatest, or the latest.

Such a quantity is a function of the set of all usage of the period. So neither the order in which usage came nor how it
was cut changes it, and what is taken back is left out when it is computed again: it is never subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from heapq import heapify, heappop, heappush


class Aggregation(StrEnum):
    """What a set of members comes to."""

    UNIQUE = "unique"
    """How many different texts."""
    MAX = "max"
    """The greatest number."""
    LATEST = "latest"
    """The number of the latest event; of several at one instant the greatest."""


class Period(StrEnum):
    """Which time one quantity is of, by the account's calendar."""

    DAY = "day"
    MONTH = "month"

    def first_day(self, day: date) -> date:
        """The day by which the period of a day is known."""
        return day.replace(day=1) if self is Period.MONTH else day

    def following(self, first_day: date) -> date:
        """The first day of the next one."""
        days = timedelta(days=31 if self is Period.MONTH else 1)
        return self.first_day(first_day + days)


@dataclass(frozen=True)
class PeriodMeter:
    """What a meter of a period looks at."""

    aggregation: Aggregation
    column: str
    """Of events: a text or number whose different values are counted, or a number of which one is billed."""
    period: Period

    @property
    def is_of_numbers(self) -> bool:
        """Whether the column is a number of which one is billed."""
        return self.aggregation is not Aggregation.UNIQUE


NEVER = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Member:
    """One of a set."""

    text: str = ""
    """Of what is counted by its different values."""
    quantity: Decimal = Decimal(0)
    """Of numbers."""
    occurred_at: datetime = NEVER
    """Of numbers of which the latest is billed."""

    @property
    def order(self) -> tuple[datetime, Decimal]:
        """Of numbers: the last in this order is billed."""
        return self.occurred_at, self.quantity


def quantity_of(aggregation: Aggregation, counts: Mapping[Member, int]) -> Decimal:
    """What a set comes to: of each member how many rows of usage put it, less those that took it back.

    0 where nothing of it stands.
    """
    stands = [member for member, count in counts.items() if count > 0]
    if aggregation is Aggregation.UNIQUE:
        return Decimal(len(stands))
    return max(stands, key=lambda member: member.order).quantity if stands else Decimal(0)


class Members:
    """A set that changes row by row, and what it comes to after each: `others` of its members never change meanwhile.

    `others` is what those come to: how many there are, or which of them is billed (None: none is).
    """

    def __init__(self, aggregation: Aggregation, counts: Mapping[Member, int], others: int | Member | None) -> None:
        self._counts = dict(counts)
        self._others = others
        self._is_unique = aggregation is Aggregation.UNIQUE
        self._stands = {member for member, count in counts.items() if count > 0}
        self._ordered = [_Reversed(member) for member in self._stands]
        heapify(self._ordered)

    def add(self, member: Member, sign: int) -> None:
        """Take a row of usage that puts the member (1), or takes it back (-1)."""
        count = self._counts[member] = self._counts.get(member, 0) + sign
        if count <= 0:
            self._stands.discard(member)
        elif member not in self._stands:
            self._stands.add(member)
            heappush(self._ordered, _Reversed(member))

    @property
    def quantity(self) -> Decimal:
        """What all of it comes to."""
        if self._is_unique:
            assert isinstance(self._others, int)
            return Decimal(len(self._stands) + self._others)
        return max(self._greatest(), key=lambda member: member.order, default=Member()).quantity

    def _greatest(self) -> Iterator[Member]:
        while self._ordered and self._ordered[0].member not in self._stands:
            heappop(self._ordered)
        if self._ordered:
            yield self._ordered[0].member
        if isinstance(self._others, Member):
            yield self._others


@dataclass(frozen=True)
class _Reversed:
    """The greatest member first."""

    member: Member

    def __lt__(self, other: _Reversed) -> bool:
        return self.member.order > other.member.order


def counted(rows: Iterable[tuple[Member, int]]) -> dict[Member, int]:
    """Members and signs of rows → the count of each."""
    counts: dict[Member, int] = {}
    for member, sign in rows:
        counts[member] = counts.get(member, 0) + sign
    return counts
