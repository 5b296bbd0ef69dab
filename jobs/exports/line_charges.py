"""Rows of FOCUS that are of no single day: tiers and packages, what an invoice differs by, and its other lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from jobs.exports.invoiced import Adjustment, Invoices, Issued, LineKey
from jobs.exports.month import UNKNOWN_MODEL, Charge, Month, priced
from jobs.exports.month_lines import Line, Terms
from jobs.exports.plan_charges import fee_charge
from metering.digits import EXACT
from metering.invoices import FEES, USAGE
from metering.price_models import model_words

PACKAGES, SHARES = "Packages", "Package Shares"


def tier_charges(month: Month, invoices: Invoices, line: Line, terms: Terms) -> Iterator[Charge]:
    """A tier as usage at its unit price, or its packages; and its flat price, or part of a package, as a purchase."""
    unit, price = month.units.get(line["meter"], "Units"), line["unit_price"]
    quantity: Decimal = line["quantity"]
    if price is None:
        unit, price = PACKAGES, terms[line["price_version"]].package_price
        # A package that is free can be in any number.
        quantity = EXACT.divide_int(line["amount"], price) if price else Decimal(0)
    cost = EXACT.multiply(quantity, price)
    number = line["tier"].partition(":")[0]
    yield _of_tier(month, invoices, line, cost, number) | {
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{line['meter']} of {model_words(line['model'])}, {line['tier']}",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": line["quantity"],
        "ConsumedUnit": month.units.get(line["meter"], "Units"),
        **priced(quantity, unit, price),
    }
    if flat := EXACT.subtract(line["amount"], cost):
        # Of packages it is what an account of a pool has of one that others opened with it.
        words, of = ("share", SHARES) if unit == PACKAGES else ("flat price", "Months")
        yield _of_tier(month, invoices, line, flat, f"{number}/flat") | {
            "ChargeCategory": "Purchase",
            "ChargeDescription": f"{line['meter']} of {model_words(line['model'])}, {words} of {line['tier']}",
            "ChargeFrequency": "Recurring",
            **priced(Decimal(1).copy_sign(flat), of, abs(flat)),
        }


def adjusted(month: Month, adjustment: Adjustment) -> Charge:
    """What an invoice has beyond the exact cost of the month's usage, or below it."""
    key = adjustment.key
    period = month.period(key.account)
    return month.charge(key.account, key.model, key.currency, adjustment.amount, adjustment.issued) | {
        "ChargeCategory": "Adjustment",
        "ChargeDescription": f"{key.meter} of {model_words(key.model or UNKNOWN_MODEL)}: {adjustment.reason}",
        "ChargeFrequency": "One-Time",
        "ChargePeriodEnd": period.end,
        "ChargePeriodStart": period.start,
    }


def other_charge(month: Month, line: Mapping[str, Any]) -> Charge:
    """A line of an invoice for an earlier month, or of no usage: rounded as it is there, of its original month."""
    issued = Issued(line["invoice"], line["issuer"], line["line"])
    if line["kind"] in FEES:
        return fee_charge(month, line, issued)
    period = month.earlier(line["original_period"], line["account"])
    charge = month.charge(line["account"], line["model"], line["currency"], line["amount"], issued) | {
        "ChargeCategory": "Adjustment",
        "ChargeClass": line["charge_class"],
        "ChargeDescription": f"{line['kind'].replace('_', ' ')}, line {line['line']} of {line['invoice']}",
        "ChargeFrequency": "One-Time",
        "ChargePeriodEnd": period.end,
        "ChargePeriodStart": period.start,
    }
    if line["kind"] != USAGE:
        return charge
    corrected = ", after the invoice"
    if line["corrects_invoice"] is not None:
        corrected = f", for line {line['corrects_line']} of {line['corrects_invoice']}"
    unit = month.units.get(line["meter"], "Units")
    return charge | {
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{line['meter']} of {model_words(line['model'] or UNKNOWN_MODEL)}{corrected}",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": line["quantity"],
        "ConsumedUnit": unit,
        "PricingCategory": "Standard",
        "PricingQuantity": line["quantity"],
        "PricingUnit": unit,
        "x_Corrected": True,
        "x_Unpriced": line["price_version"] is None,
        **_sku(line, None if line["tier"] is None else line["tier"].partition(":")[0]),
    }


def _of_tier(month: Month, invoices: Invoices, line: Mapping[str, Any], cost: Decimal, price: str) -> Charge:
    """What each row of a tier has; `price` tells its prices apart."""
    key = LineKey(*(line[name] for name in LineKey._fields))
    period = month.period(key.account)
    return month.charge(key.account, key.model, key.currency, cost, invoices.of(key, cost)) | {
        "ChargePeriodEnd": period.end,
        "ChargePeriodStart": period.start,
        "x_Corrected": line["corrected"],
        **_sku(line, price),
    }


def _sku(line: Mapping[str, Any], price: str | None) -> Charge:
    sku, version = f"{line['model'] or UNKNOWN_MODEL}/{line['meter']}", line["price_version"]
    details = {"x_PriceVersion": str(version), **({} if line["tier"] is None else {"x_Tier": line["tier"]})}
    below = "" if price is None else f"/{price}"
    return {
        "SkuId": sku,
        "SkuMeter": line["meter"],
        "SkuPriceDetails": None if version is None else json.dumps(details),
        "SkuPriceId": sku if version is None else f"{sku}/{version}{below}",
    }
