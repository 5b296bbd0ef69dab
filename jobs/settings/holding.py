"""The setting `hold`: which stragglers wait for a decision, how long, and what happens at their deadline."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from jobs.settings.names import as_written
from metering.holding import Hold
from metering.vocabulary import Decision

MAX_HOLD_SECONDS = 31_622_400
LARGEST_AMOUNT = Decimal(10**20 - 1)
"""Of the 38 digits of an amount 18 are decimals."""


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


Amount = Annotated[
    Decimal, BeforeValidator(as_written), PlainSerializer(_text), Field(ge=0, le=LARGEST_AMOUNT, decimal_places=18)
]
Currency = Annotated[str, Field(pattern="^[A-Z]{3}$")]


class HoldConfig(BaseModel):
    """How stragglers are held where the late policy is `hold`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: int = Field(
        default=604_800,
        ge=1,
        le=MAX_HOLD_SECONDS,
        description="How long after it was received a straggler waits at most, by the frontier.",
    )
    expires: Literal["drop", "correct"] = Field(
        default="drop",
        description="What happens to it without a decision by then: drop (it is not billed) or correct.",
    )
    above_amount: Annotated[Decimal | None, BeforeValidator(as_written), PlainSerializer(_text)] = Field(
        default=None,
        ge=0,
        le=LARGEST_AMOUNT,
        decimal_places=18,
        description="Only what is worth more waits, in the currency of the usage, whichever it is, or what has no "
        "price; all else corrects at once.",
    )
    above_amount_by_currency: dict[Currency, Amount] | None = Field(
        default=None,
        min_length=1,
        description="The same by currency, such as `{EUR: 5, JPY: 800}`. In any other currency above_amount decides, "
        "and without it all usage waits.",
    )
    above_age_seconds: int | None = Field(
        default=None,
        ge=0,
        le=MAX_HOLD_SECONDS,
        description="Only what came longer than this after the end of its window waits; beside an amount: what is "
        "above one of them.",
    )

    def rule(self) -> Hold:
        """The same as the rule that decides."""
        age = None if self.above_age_seconds is None else timedelta(seconds=self.above_age_seconds)
        limits = (self.above_amount, age, self.above_amount_by_currency or {})
        return Hold(timedelta(seconds=self.seconds), Decision(self.expires), *limits)
