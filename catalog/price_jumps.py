"""Prices 100 times above or below another, found by the database (migrations 0039, 0045): sentences and confirmation.

Most of them are per million units and were meant per unit, or the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import dict_row

from catalog.agreement import NeedsAgreement
from catalog.file import CatalogFile
from deployment.errors import CannotRun
from jobs.runtime.unreachable import database_sentence
from metering.digits import plain
from metering.instants import rfc3339

TIMES = 100
USUAL_UNITS: Mapping[str, int] = {"token": 1_200}
"""What one request has of a unit, where that is not one."""
USUAL_PERS = (1, 1_000, 1_000_000)
"""Of how many units price lists give prices."""
MAX_NAMED = 20


class Compared(StrEnum):
    """What a price was compared with."""

    REPLACED = "replaced"
    BEFORE = "before"
    UNCONDITIONAL = "unconditional"
    MEDIAN = "median"


_COMPARED = {
    Compared.REPLACED: "it replaces {price}",
    Compared.BEFORE: "the price before it is {price}",
    Compared.UNCONDITIONAL: "without its conditions the price is {price}",
    Compared.MEDIAN: "the median of {meter} in {currency} is {price}",
}
COLUMNS = "plan, model, meter, currency, effective_from, unit_price, compared_with, other_price"
_UNCONFIRMED = f"""
    SELECT {COLUMNS}, coalesce(unit, 'unit') AS unit FROM catalog.price_jumps LEFT JOIN meters USING (meter)
    WHERE confirmed_at IS NULL AND changed_at = now() ORDER BY plan, model, meter, currency, effective_from
"""
KEY = ("plan", "model", "meter", "currency", "effective_from")
PriceKey = tuple[str, str, str, str, datetime]
_CONFIRM = f"""
    WITH confirmed AS (
        UPDATE catalog.price_jumps SET confirmed_by = coalesce(confirmed_by, %(by)s),
                                       confirmed_at = coalesce(confirmed_at, now())
        WHERE ({", ".join(KEY)}) = ({", ".join(f"%({name})s" for name in KEY)})
        RETURNING *
    )
    SELECT {COLUMNS}, coalesce(unit, 'unit') AS unit, confirmed_by, confirmed_at
    FROM confirmed LEFT JOIN meters USING (meter)
"""


@dataclass(frozen=True)
class PriceJump:
    """A price of one `unit` (token, request), and the price it was compared with; it was written per `per` units."""

    plan: str
    model: str
    meter: str
    currency: str
    effective_from: datetime
    unit_price: Decimal
    compared_with: str
    other_price: Decimal
    unit: str
    per: int = 1

    @property
    def key(self) -> PriceKey:
        """As `catalog.file.Price.key`."""
        return self.plan, self.model, self.meter, self.currency, self.effective_from

    @property
    def sentence(self) -> str:
        """The price, what it is compared with, the cost of a usual request, and what was probably meant."""
        compared = _COMPARED[Compared(self.compared_with)].format(
            price=plain(self.other_price), meter=self.meter, currency=self.currency
        )
        return (
            f"{self.plan}, {self.model}, {self.meter}, {self.currency}, from {rfc3339(self.effective_from)} "
            f"({compared}): {self.cost}{self._meant}"
        )

    @property
    def cost(self) -> str:
        """What a usual request costs, such as `2.5 per token: one request of 1,200 tokens costs 3,000 USD`."""
        usual = USUAL_UNITS.get(self.unit, 1)
        of = "" if self.unit == "request" else f" of {_counted(usual, self.unit)}"
        amount = f"{_grouped(self.unit_price * usual)} {self.currency}"
        units = self.unit if self.per == 1 else _counted(self.per, self.unit)
        return f"{plain(self._written)} per {units}: one request{of} costs {amount}"

    @property
    def _written(self) -> Decimal:
        return self.unit_price * self.per

    @property
    def _meant(self) -> str:
        if not self._written:
            return ""
        near = {
            ratio: per
            for per in USUAL_PERS
            if per != self.per and (ratio := _times(self._written / per, self.other_price)) < TIMES
        }
        return f"; did you mean per: {near[min(near)]}?" if near else ""


class PricesJump(NeedsAgreement):
    """Nothing is stored; the message says which prices jump, and how to agree."""

    question = "Store these prices?"

    def __init__(self, jumps: Sequence[PriceJump]) -> None:
        self.jumps = tuple(jumps)
        more = [f"and {len(jumps) - MAX_NAMED} more"] if len(jumps) > MAX_NAMED else []
        found = "1 price is" if len(jumps) == 1 else f"{len(jumps)} prices are"
        super().__init__(
            "\n".join(
                [
                    f"{found} {TIMES} times or more above or below another:",
                    *(jump.sentence for jump in jumps[:MAX_NAMED]),
                    *more,
                    "Nothing is stored. If that is what you mean, add --yes.",
                ]
            )
        )


def refuse_jumps(database: psycopg.Connection[dict[str, Any]], catalog: CatalogFile) -> None:
    """Raise PricesJump where prices of the file, stored in this transaction, jump and are not confirmed."""
    pers = {price.key: price.per for price in catalog.prices}
    jumps = [PriceJump(**row) for row in database.execute(_UNCONFIRMED)]
    if jumps:
        raise PricesJump([replace(jump, per=pers[jump.key]) for jump in jumps])


def _times(price: Decimal, other: Decimal) -> Decimal:
    return max(price / other, other / price)


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def _grouped(amount: Decimal) -> str:
    whole, point, decimals = plain(amount).partition(".")
    return f"{int(whole):,}{point}{decimals}"


def confirm(postgres_url: str, key: PriceKey, by: str) -> str:
    """Confirm a price in the name of `by`; returns which, and who confirmed it. The first confirmation stays.

    Raises CannotRun where the price does not jump, and when the database refuses.
    """
    try:
        with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
            row = database.execute(_CONFIRM, dict(zip(KEY, key, strict=True)) | {"by": by}).fetchone()
    except psycopg.Error as problem:
        if (message := database_sentence(problem, postgres_url)) is not None:
            raise CannotRun(message) from None
        raise CannotRun(f"The database refused to confirm it: {str(problem).splitlines()[0]}") from problem
    if row is None:
        raise CannotRun("No such price is 100 times above or below another: `weir catalog jumps --all` lists those.")
    confirmed_by, confirmed_at = row.pop("confirmed_by"), row.pop("confirmed_at")
    return f"Confirmed by {confirmed_by} at {rfc3339(confirmed_at)}: {PriceJump(**row).cost}."
