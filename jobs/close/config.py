"""The configuration of the close."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from jobs.audit.config import AuditConfig
from metering.invoices import Money, Rounding

MinorUnit = Annotated[int, Field(ge=0, le=12)]


class UnknownCurrencyError(ValueError):
    """A currency of which nobody has said how many decimals its amounts have."""


class CloseConfig(AuditConfig):
    """`close.config` of the chart, and the file of `weir close --config`; with what its audit needs."""

    issuer: str = Field(
        default="weir",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$",
        description="Who issues the invoices. Each issuer has a series of numbers, so `weir-12` is its twelfth.",
    )
    rounding: Rounding = Field(
        default=Rounding.HALF_EVEN,
        description="How the amount of a line is rounded to the currency's smallest unit: half-even or half-up.",
    )
    minor_units: Mapping[str, MinorUnit] = Field(
        default_factory=dict,
        description="Decimals of currencies that ISO 4217 does not have (`credits: 2`), or has otherwise.",
    )
    write_off_below: Mapping[str, Annotated[Decimal, Field(gt=0)]] = Field(
        default_factory=dict,
        description="By currency: a charge for an earlier month that is lower is written off, as a line of its own.",
    )

    def money(self, currency: str) -> Money:
        """How amounts in a currency are rounded. Raises UnknownCurrencyError where nobody says its decimals."""
        from iso4217 import Currency

        found = self.minor_units.get(currency)
        if found is None:
            try:
                found = Currency(currency).exponent
            except ValueError:
                found = None
        if found is None:
            raise UnknownCurrencyError(
                f"ISO 4217 has no decimals for the currency {currency!r}: name them in close.minor_units"
            )
        return Money(currency, found, self.rounding)
