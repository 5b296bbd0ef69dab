"""Charges: each row of `usage_days` of a month as one row of FOCUS Cost and Usage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from jobs.exports.columns import DIMENSION_PREFIX
from jobs.exports.invoiced import Adjustment, Invoices, LineKey
from jobs.queries.account_periods import periods
from jobs.queries.bills import Period, read_periods, unknown_period
from jobs.queries.periods import Window
from jobs.queries.reading import Database, select
from metering.digits import EXACT
from metering.months import IN_MONTH_SQL, ZoneChange
from metering.pricing import BILLED_AS_PART

Charge = dict[str, Any]
NO_CURRENCY = "XXX"
"""ISO 4217's code for none: of usage whose account is in no catalog."""
UNKNOWN_MODEL = "unknown"
DAY = timedelta(days=1)
NOTHING = Decimal(0)
FIXED = {"ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "Generative AI"}

# Units that another meter bills are in that meter's row.
_USAGE = f"""
    SELECT account, day, model, meter, currency, price_version, unit_price, quantity, amount, dimensions, is_other,
           corrected
    FROM usage_days
    WHERE {IN_MONTH_SQL} AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND quantity <> 0 AND (price_version IS NULL OR price_version > {BILLED_AS_PART})
    ORDER BY account, day, model, meter, currency, price_version, is_other, dimensions_key
"""
# Its cost is a function of the month's total (metering.price_tiers), not of a day.
_TIERED = f"""
    SELECT account, model, meter FROM usage_days
    WHERE {IN_MONTH_SQL} AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND quantity <> 0 AND price_version > {BILLED_AS_PART} AND unit_price IS NULL
    ORDER BY account, model, meter LIMIT 1
"""
_TAGS = "SELECT account, tags FROM catalog.accounts WHERE tags <> '{}'"
_METERS = "SELECT meter, unit, period FROM meters"


@dataclass(frozen=True)
class Seller:
    """Who sells, in the words of FOCUS: the provider, and the `host` whose infrastructure the models run on."""

    issuer: str
    host: str


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
class Month:
    """The month that begins on `first`, of every account, as the catalog of one snapshot has it."""

    first: date
    known: Mapping[str, Period]
    tags: Mapping[str, Mapping[str, str]]
    units: Mapping[str, str]
    """By meter, in the form of FOCUS."""
    whole_months: frozenset[str]
    """The meters that bill a month as a whole."""
    _days: dict[tuple[ZoneChange, ...], dict[date, tuple[datetime, datetime]]] = field(default_factory=dict)

    @classmethod
    def read(cls, database: Database, first: date) -> Month:
        """The month as this snapshot has it."""
        meters = database.execute(_METERS).fetchall()
        return cls(
            first,
            read_periods(database, first),
            {row["account"]: row["tags"] for row in database.execute(_TAGS)},
            {row["meter"]: unit_of(row["unit"]) for row in meters},
            frozenset(row["meter"] for row in meters if row["period"] == "month"),
        )

    def period(self, account: str) -> Period:
        """The account's month."""
        return self.known.get(account) or unknown_period(self.first, account)

    def head(self, account: str) -> Period:
        """The month of the account whose bill it is: the topmost parent of when the month began."""
        found = self.period(account)
        while found.parent is not None and found.parent in self.known:
            found = self.known[found.parent]
        return found

    def charged(self, account: str, day: date, meter: str) -> tuple[datetime, datetime]:
        """From when to when usage of a day is charged, in UTC."""
        period = self.period(account)
        if meter in self.whole_months:
            return period.start, period.end
        if period.zones not in self._days:
            last = (self.first + 31 * DAY).replace(day=1) - DAY
            found = periods(Window.DAY, period.zones, self.first, last)
            self._days[period.zones] = {local.first: (local.start, local.end) for local in found}
        return self._days[period.zones].get(day) or (period.start, period.end)


def unit_of(unit: str) -> str:
    """A unit as FOCUS writes it (UnitFormat): in the plural, with a capital."""
    return f"{unit[:1].upper()}{unit[1:]}" + ("" if unit.endswith("s") else "s")


def tiered(database: Database, month: date, accounts: Sequence[str]) -> Mapping[str, Any] | None:
    """Usage of the month that is priced by tiers or packages, as `account, model, meter`; None without any."""
    return database.execute(_TIERED, {"month": month, "accounts": list(accounts) or None}).fetchone()


@dataclass(frozen=True)
class Charges:
    """The charges of a self.month. `totals` counts those that were read."""

    month: Month
    seller: Seller
    invoices: Invoices
    totals: Totals = field(default_factory=Totals)

    def read(self, database: Database, accounts: Sequence[str], rows_per_batch: int) -> Iterator[list[Charge]]:
        """Those of `accounts` (none: of all) in the order of account and day, then what their invoices differ by."""
        found = select(database, _USAGE, {"month": self.month.first, "accounts": list(accounts) or None})
        # Adjustments begin when the last row of usage is counted.
        charges = chain(map(self._usage, found), map(self._adjusted, self.invoices.adjustments()))
        while batch := list(islice(charges, rows_per_batch)):
            for charge in batch:
                self.totals.count(charge)
            yield batch

    def _usage(self, row: Mapping[str, Any]) -> Charge:
        cost, price = row["amount"] or NOTHING, row["unit_price"] or NOTHING
        sku = f"{row['model'] or UNKNOWN_MODEL}/{row['meter']}"
        version = row["price_version"]
        dimensions: Mapping[str, str] = row["dimensions"] or {}
        unit, region = self.month.units.get(row["meter"], "Units"), dimensions.get("region")
        starts, ends = self.month.charged(row["account"], row["day"], row["meter"])
        tags = {
            **self.month.tags.get(row["account"], {}),
            **{DIMENSION_PREFIX + name: dimensions[name] for name in dimensions},
        }
        return {
            **self._charge(row["account"], row["model"], row["currency"], cost),
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{row['meter']} of {row['model'] or UNKNOWN_MODEL}",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodEnd": ends,
            "ChargePeriodStart": starts,
            "ConsumedQuantity": row["quantity"],
            "ConsumedUnit": unit,
            "ContractedUnitPrice": price,
            "InvoiceId": self.invoices.of(row, cost),
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

    def _adjusted(self, adjustment: Adjustment) -> Charge:
        key: LineKey = adjustment.key
        period = self.month.period(key.account)
        return {
            **self._charge(key.account, key.model, key.currency, adjustment.amount),
            "ChargeCategory": "Adjustment",
            "ChargeDescription": f"{key.meter} of {key.model or UNKNOWN_MODEL}: {adjustment.reason}",
            "ChargeFrequency": "One-Time",
            "ChargePeriodEnd": period.end,
            "ChargePeriodStart": period.start,
            "InvoiceId": adjustment.invoice,
            "x_Corrected": False,
            "x_OtherDimensions": False,
            "x_Unpriced": False,
        }

    def _charge(self, account: str, model: str | None, currency: str | None, cost: Decimal) -> Charge:
        """What every row has."""
        head, own = self.month.head(account), self.month.period(account)
        is_below = head.account != account
        return {
            **FIXED,
            **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
            **dict.fromkeys(
                ("InvoiceIssuerName", "ProviderName", "PublisherName", "ServiceProviderName"), self.seller.issuer
            ),
            "HostProviderName": self.seller.host,
            "BillingAccountId": head.account,
            "BillingAccountName": head.name or head.account,
            "BillingCurrency": currency or NO_CURRENCY,
            "BillingPeriodEnd": head.end,
            "BillingPeriodStart": head.start,
            "ServiceName": model or UNKNOWN_MODEL,
            "SubAccountId": account if is_below else None,
            "SubAccountName": (own.name or account) if is_below else None,
            "x_Model": model,
        }
