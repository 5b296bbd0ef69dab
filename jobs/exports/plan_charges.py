"""Rows of FOCUS of what plans cost beside usage, and of the units that they include."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from jobs.exports.invoiced import Invoices, Issued, LineKey
from jobs.exports.month import UNKNOWN_MODEL, Charge, Month, priced
from jobs.exports.month_lines import Line
from metering.digits import EXACT
from metering.plan_terms import FEE_WORDS, Fee
from metering.price_models import model_words


def included_charge(month: Month, invoices: Invoices, line: Line, prices: Mapping[int, Decimal]) -> Charge:
    """What the days of usage cost and a plan includes: taken off, for the month."""
    of_days = LineKey(*(line[name] for name in LineKey._fields))._replace(tier=None)
    period = month.period(of_days.account)
    cost = EXACT.multiply(-line["quantity"], prices[line["price_version"]])
    return month.charge(of_days.account, of_days.model, of_days.currency, cost, invoices.of(of_days, cost)) | {
        "ChargeCategory": "Credit",
        "ChargeDescription": f"{line['meter']} of {model_words(line['model'] or UNKNOWN_MODEL)}, included in the plan",
        "ChargeFrequency": "One-Time",
        "ChargePeriodEnd": period.end,
        "ChargePeriodStart": period.start,
        "x_Corrected": line["corrected"],
    }


def fee_charge(month: Month, line: Line, issued: Issued | None = None) -> Charge:
    """What a plan costs beside its usage: its flat fee as a purchase, and what brings the month to a limit.

    A line that corrects an earlier month has no unit price: a rounded difference is no product.
    """
    account, kind, plan, class_ = line["account"], line["kind"], line["tier"], line.get("charge_class")
    period = month.period(account) if class_ is None else month.earlier(line["original_period"], account)
    of_invoice = "" if class_ is None else f", line {line['line']} of {line['invoice']}"
    charge = month.charge(account, None, line["currency"], line["amount"], issued) | {
        "ChargeCategory": "Adjustment",
        "ChargeClass": class_,
        "ChargeDescription": f"{FEE_WORDS[kind]} of the plan {plan}{of_invoice}",
        "ChargeFrequency": "One-Time",
        "ChargePeriodEnd": period.end,
        "ChargePeriodStart": period.start,
        "ServiceName": plan,
        "x_Corrected": class_ is not None,
    }
    if kind != Fee.FLAT:
        return charge
    sku = {"SkuId": f"{plan}/{kind}", "SkuMeter": FEE_WORDS[kind], "SkuPriceId": f"{plan}/{kind}"}
    bought = {"ChargeCategory": "Purchase", "ChargeFrequency": "Recurring"}
    return charge | bought | sku | ({} if class_ else priced(Decimal(1), "Months", line["amount"]))
