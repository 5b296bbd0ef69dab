"""Which stragglers wait for a decision, for how long, and what happens if nobody decides."""

from __future__ import annotations

from dataclasses import dataclass
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

    def holds(self, amount: Decimal | None, age: timedelta) -> bool:
        """Whether a straggler of this signed amount (None: no price) and age waits."""
        if self.above_amount is None and self.above_age is None:
            return True
        is_large = self.above_amount is not None and (amount is None or abs(amount) > self.above_amount)
        return is_large or (self.above_age is not None and age > self.above_age)

    def until(self, received_at: datetime) -> datetime:
        """The deadline: a decision counts if it was received before it, and F ends the wait at it."""
        return received_at + self.time
