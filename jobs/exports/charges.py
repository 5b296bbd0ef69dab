"""Charges: each row of `usage_days` of a month as one row of FOCUS Cost and Usage, and what is of no single day."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from jobs.exports.columns import DIMENSION_PREFIX
from jobs.exports.invoiced import Invoices, LineKey, other_lines
from jobs.exports.line_charges import adjusted, other_charge, tier_charges
from jobs.exports.month import UNKNOWN_MODEL, Charge, Month
from jobs.exports.month_lines import MonthLines
from jobs.exports.plan_charges import fee_charge, included_charge
from jobs.queries.reading import Database, select
from metering.digits import EXACT
from metering.months import IN_MONTH_SQL
from metering.pricing import BILLED_AS_PART

NOTHING = Decimal(0)

# Units that another meter bills are in that meter's row. What has tiers is priced by the month's total, not by a day.
_USAGE = f"""
    SELECT account, day, model, meter, currency, price_version, unit_price, quantity, amount, dimensions, is_other,
           corrected
    FROM usage_days
    WHERE {IN_MONTH_SQL} AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND quantity <> 0 AND (price_version IS NULL OR (price_version > {BILLED_AS_PART} AND unit_price IS NOT NULL))
    ORDER BY account, day, model, meter, currency, price_version, is_other, dimensions_key
"""


@dataclass
class Totals:
    """What the rows add up to. `costs` are by currency, exact."""

    rows: int = 0
    unpriced_rows: int = 0
    costs: dict[str, Decimal] = field(default_factory=dict)

    def count(self, charge: Charge) -> None:
        """One more row."""
        self.rows += 1
        self.unpriced_rows += charge["x_Unpriced"]
        currency, cost = charge["BillingCurrency"], charge["BilledCost"]
        self.costs[currency] = EXACT.add(self.costs.get(currency, NOTHING), cost)


@dataclass(frozen=True)
class Charges:
    """The charges of a month. `totals` counts those that were read.

    `by_line`: a row has an invoice only with a line of it. Without one it came after the invoice, and sums to 0 with
    the row that takes it out.
    """

    month: Month
    invoices: Invoices
    totals: Totals = field(default_factory=Totals)
    by_line: bool = False

    def read(self, database: Database, accounts: Sequence[str], rows_per_batch: int) -> Iterator[list[Charge]]:
        """Those of `accounts` (none: of all): usage by account and day, then what no day has a part of.

        That is usage with tiers or packages, what plans cost and include, what invoices differ by, and their lines for
        other months. Raises CannotExport where the amount of a tier or of a plan is not known.
        """
        month, invoices = self.month, self.invoices
        found = select(database, _USAGE, {"month": month.first, "accounts": list(accounts) or None})
        lines = MonthLines.read(database, month, accounts, invoices)
        # Adjustments begin when the last row of usage is counted.
        charges = chain(
            map(self._usage, found),
            chain.from_iterable(tier_charges(month, invoices, line, lines.terms) for line in lines.tiers),
            (included_charge(month, invoices, line, lines.prices) for line in lines.included),
            (fee_charge(month, fee) for fee in lines.fees),
            self._adjustments(),
            (other_charge(month, line) for line in other_lines(database, month.first, accounts)),
        )
        while batch := list(islice(charges, rows_per_batch)):
            for charge in batch:
                self.totals.count(charge)
                if self.by_line and charge["InvoiceDetailId"] is None:
                    charge["InvoiceId"] = None
            yield batch

    def _adjustments(self) -> Iterator[Charge]:
        for adjustment in self.invoices.adjustments():
            yield adjusted(self.month, adjustment)

    def _usage(self, row: Mapping[str, Any]) -> Charge:
        cost, price = row["amount"] or NOTHING, row["unit_price"] or NOTHING
        sku = f"{row['model'] or UNKNOWN_MODEL}/{row['meter']}"
        version = row["price_version"]
        key = LineKey(row["account"], row["model"], row["meter"], row["currency"], version)
        issued = self.invoices.of(key, cost)
        dimensions: Mapping[str, str] = row["dimensions"] or {}
        unit, region = self.month.units.get(row["meter"], "Units"), dimensions.get("region")
        starts, ends = self.month.charged(row["account"], row["day"], row["meter"])
        tags = {
            **self.month.tags.get(row["account"], {}),
            **{DIMENSION_PREFIX + name: dimensions[name] for name in dimensions},
        }
        return {
            **self.month.charge(row["account"], row["model"], row["currency"], cost, issued),
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{row['meter']} of {row['model'] or UNKNOWN_MODEL}",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodEnd": ends,
            "ChargePeriodStart": starts,
            "ConsumedQuantity": row["quantity"],
            "ConsumedUnit": unit,
            "ContractedUnitPrice": price,
            "ListUnitPrice": price,
            "PricingCategory": "Standard",
            "PricingQuantity": row["quantity"],
            "PricingUnit": unit,
            "RegionId": region,
            "RegionName": region,
            "SkuId": sku,
            "SkuMeter": row["meter"],
            "SkuPriceDetails": None if version is None else json.dumps({"x_PriceVersion": str(version)}),
            "SkuPriceId": sku if version is None else f"{sku}/{version}",
            "Tags": json.dumps(tags, ensure_ascii=False, sort_keys=True) if tags else None,
            "x_Corrected": row["corrected"],
            "x_CredentialId": dimensions.get("api_key_id"),
            "x_LocalDate": row["day"],
            "x_OtherDimensions": row["is_other"],
            "x_PrincipalId": dimensions.get("user_id"),
            "x_Unpriced": version is None,
        }
