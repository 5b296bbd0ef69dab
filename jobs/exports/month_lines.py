"""The lines of a month that no day has a part of: tiers and packages, what plans include, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from jobs.exports.files import CannotExport
from jobs.exports.invoiced import Invoices
from jobs.exports.month import Month
from jobs.queries.bills import read_month
from jobs.queries.plan_fees import read_plan_months
from jobs.queries.reading import Database
from metering.invoices import FEES
from metering.months import IN_MONTH_SQL
from metering.price_tiers import PriceTerms
from metering.pricing import BILLED_AS_PART

Terms = Mapping[int, PriceTerms]
Line = Mapping[str, Any]

_TIERED = f"""
    SELECT DISTINCT account FROM usage_days
    WHERE {IN_MONTH_SQL} AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND quantity <> 0 AND price_version > {BILLED_AS_PART} AND unit_price IS NULL
"""
_PRICES = "SELECT price_version, unit_price, terms FROM price_ladders WHERE price_version = ANY (%s)"


@dataclass(frozen=True)
class MonthLines:
    """Lines of `read_month` that no day has a part of, and the `terms` and unit `prices` of their price versions.

    `tiers` have a tier of a price, `included` are units with a unit price that a plan includes, `fees` what plans cost
    where no invoice has it.
    """

    terms: Terms = field(default_factory=dict)
    prices: Mapping[int, Decimal] = field(default_factory=dict)
    tiers: Sequence[Line] = ()
    included: Sequence[Line] = ()
    fees: Sequence[Line] = ()

    @classmethod
    def read(cls, database: Database, month: Month, accounts: Sequence[str], invoices: Invoices) -> MonthLines:
        """Those of `accounts` (none: of all); fees only where neither `invoices` nor a later one has them.

        Raises CannotExport where the amount of one is not known.
        """
        rows = database.execute(_TIERED, {"month": month.first, "accounts": list(accounts) or None}).fetchall()
        plans = read_plan_months(database, month.first, lambda: month.known, accounts or None).every
        if not (found := {row["account"] for row in rows} | plans.keys()):
            return cls()
        lines = read_month(database, month.first, sorted(found)).lines
        # An invoice has its own fees.
        fees = [line for line in lines if line["kind"] in FEES and not invoices.has(line["account"], line["currency"])]
        for line in [*(line for line in lines if line["kind"] not in FEES), *fees]:
            _refuse_unknown(line)
        of_units = [line for line in lines if line["tier"] is not None and line["kind"] not in FEES]
        versions = sorted({line["price_version"] for line in of_units})
        priced = database.execute(_PRICES, [versions]).fetchall()
        terms = {row["price_version"]: PriceTerms.parse(row["terms"]) for row in priced if row["terms"] is not None}
        return cls(
            terms,
            {row["price_version"]: row["unit_price"] for row in priced if row["terms"] is None},
            [line for line in of_units if line["price_version"] in terms],
            [line for line in of_units if line["price_version"] not in terms],
            fees,
        )


def _refuse_unknown(line: Line) -> None:
    if line["amount"] is None and line["kind"] in FEES:
        raise CannotExport(
            f"what the plan {line['tier']} costs {line['account']} depends on usage whose plan or amount is not known "
            "yet. See I6 of `weir audit`, or export the other accounts with --account."
        )
    if line["amount"] is None and (line["price_version"] or 0) > BILLED_AS_PART:
        raise CannotExport(
            f"{line['meter']} of {line['model']} has a price with tiers or packages for {line['account']}, and "
            "its tiers are not known. See I6 of `weir audit`, or export the other accounts with --account."
        )
