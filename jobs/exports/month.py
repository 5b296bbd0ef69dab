"""The month of an export: accounts with their calendars and parents, and what every row of it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from jobs.exports.invoiced import Issued
from jobs.queries.account_periods import periods
from jobs.queries.bills import Period, read_periods, unknown_period
from jobs.queries.periods import Window
from jobs.queries.reading import Database
from metering.months import ZoneChange, billing_month
from metering.price_models import model_words

Charge = dict[str, Any]
NO_CURRENCY = "XXX"
"""ISO 4217's code for none: of usage whose account is in no catalog."""
UNKNOWN_MODEL = "unknown"
DAY = timedelta(days=1)
FIXED = {"ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "Generative AI"}

_TAGS = "SELECT account, tags FROM catalog.accounts WHERE tags <> '{}'"
_METERS = "SELECT meter, unit, period FROM meters"


@dataclass(frozen=True)
class Seller:
    """Who sells, in the words of FOCUS: the provider, and the `host` whose infrastructure the models run on.

    `payment_terms`: when invoices are due, such as `Net 30`.
    """

    issuer: str
    host: str
    payment_terms: str = ""


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
    seller: Seller
    _days: dict[tuple[ZoneChange, ...], dict[date, tuple[datetime, datetime]]] = field(default_factory=dict)

    @classmethod
    def read(cls, database: Database, first: date, seller: Seller) -> Month:
        """The month as this snapshot has it."""
        meters = database.execute(_METERS).fetchall()
        return cls(
            first,
            read_periods(database, first),
            {row["account"]: row["tags"] for row in database.execute(_TAGS)},
            {row["meter"]: unit_of(row["unit"]) for row in meters},
            frozenset(row["meter"] for row in meters if row["period"] == "month"),
            seller,
        )

    def period(self, account: str) -> Period:
        """The account's month."""
        return self.known.get(account) or unknown_period(self.first, account)

    def earlier(self, first: date, account: str) -> Period:
        """The account's month that begins on another first of a month."""
        zones = self.period(account).zones
        found = billing_month(zones, first)
        return Period(account, None, found.zone.key, found.start, found.end, zones=zones)

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

    def charge(
        self, account: str, model: str | None, currency: str | None, cost: Decimal, issued: Issued | None
    ) -> Charge:
        """What every row has: costs, accounts, the invoice (None: on none yet), and what a row of no usage is not."""
        head, own = self.head(account), self.period(account)
        is_below = head.account != account
        return {
            **FIXED,
            **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
            **dict.fromkeys(("ProviderName", "PublisherName", "ServiceProviderName"), self.seller.issuer),
            "InvoiceDetailId": None if issued is None or issued.line is None else str(issued.line),
            "InvoiceId": None if issued is None else issued.invoice,
            "InvoiceIssuerName": self.seller.issuer if issued is None else issued.issuer,
            "HostProviderName": self.seller.host,
            "BillingAccountId": head.account,
            "BillingAccountName": head.name or head.account,
            "BillingCurrency": currency or NO_CURRENCY,
            "BillingPeriodEnd": head.end,
            "BillingPeriodStart": head.start,
            "ServiceName": model_words(model or UNKNOWN_MODEL),
            "SubAccountId": account if is_below else None,
            "SubAccountName": (own.name or account) if is_below else None,
            "x_Corrected": False,
            "x_Model": model,
            "x_OtherDimensions": False,
            "x_Unpriced": False,
        }


def priced(quantity: Decimal, unit: str, price: Decimal) -> Charge:
    """A quantity at its one price."""
    return {
        "ContractedUnitPrice": price,
        "ListUnitPrice": price,
        "PricingCategory": "Standard",
        "PricingQuantity": quantity,
        "PricingUnit": unit,
    }


def unit_of(unit: str) -> str:
    """A unit as FOCUS writes it (UnitFormat): in the plural, with a capital."""
    return f"{unit[:1].upper()}{unit[1:]}" + ("" if unit.endswith("s") else "s")
