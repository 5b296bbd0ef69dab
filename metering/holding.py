"""Which stragglers wait for a decision, for how long, and what happens if nobody decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from metering.vocabulary import Decision


@dataclass(frozen=True)
class Hold:
    """How a meter's stragglers are held: all of them without limits, else those above any of the limits."""

    time: timedelta
    expires: Decision
    """The decision at the deadline: `correct` or `drop`."""
    above_amount: Decimal | None = None
    """In the currency of the usage. Unpriced usage may be worth anything, so it is above."""
    above_age: timedelta | None = None
    """Counted from the end of the window."""
    above_amount_by_currency: Mapping[str, Decimal] = field(default_factory=dict)
    """By currency; `above_amount` is that of all others. Without it nothing is known to be little in these."""

    @property
    def has_limit(self) -> bool:
        """Whether not all stragglers wait."""
        return (self.above_amount, self.above_age) != (None, None) or bool(self.above_amount_by_currency)

    def holds(self, amount: Decimal | None, age: timedelta, currency: str | None = None) -> bool:
        """Whether a straggler of this signed amount (None: no price) and age waits."""
        if not self.has_limit or (self.above_age is not None and age > self.above_age):
            return True
        above = self.above_amount_by_currency.get(currency or "", self.above_amount)
        if above is None:
            return bool(self.above_amount_by_currency)
        return amount is None or abs(amount) > above

    def until(self, received_at: datetime) -> datetime:
        """The deadline: a decision counts if it was received before it, and F ends the wait at it."""
        return received_at + self.time
