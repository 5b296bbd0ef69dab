"""Which price usage must have, by plain Python: the rules as the guide tells them. Imports nothing of Weir.

What was known is a prefix of each row's history: all that the journal has told before the outcome was decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True)
class Told:
    """A change of an account or a price. `lsn`: where the journal tells it first. `at`: of a deletion, when that was.

    Of an account `since` when it holds, plan and currency; of a price `since` when, and its unit price.
    """

    lsn: int
    since: datetime
    at: datetime | None = None
    plan: str = ""
    currency: str = ""
    unit_price: Decimal | None = None

    @property
    def is_deletion(self) -> bool:
        """Whether the row was deleted."""
        return self.at is not None


def known(history: Sequence[Told], decided_lsn: int) -> Sequence[Told]:
    """What was told before."""
    return [told for told in history if told.lsn < decided_lsn]


def contract(account: Sequence[Told], event_time: datetime) -> Told | None:
    """An account is one row: what it said last holds from then on, also against what was announced before.

    Its first holds from the beginning of time. One that was deleted has no contract from then on.
    """
    holds = None
    for number, told in enumerate(account):
        if number == 0 or told.since <= event_time:
            holds = told
    return None if holds is None or holds.is_deletion else holds


def price(rows: Mapping[datetime, Sequence[Told]], event_time: datetime) -> Told | None:
    """Of the prices of one plan, model, meter and currency, by when they begin, the one that began last holds."""
    for begins in sorted(rows, reverse=True):
        if begins <= event_time and rows[begins]:
            is_over, holds = held(rows[begins], event_time)
            if is_over:
                return holds
    return None


def held(states: Sequence[Told], event_time: datetime) -> tuple[bool, Told | None]:
    """THE RULE OF DELETIONS: of one row of prices that has begun, whether it says what holds, and what it says.

    A price that is deleted ends at that moment: (True, None) from then on, whatever held before it. One that had not
    begun by then never began, so the price before it goes on: (False, None).
    """
    last = states[-1]
    if last.at is None:
        return True, last
    if last.at <= last.since:
        return False, None
    before = next((told for told in reversed(states) if not told.is_deletion), None)
    return (False, None) if before is None else (True, before if event_time < last.at else None)
