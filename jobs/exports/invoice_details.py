"""Invoice Detail of FOCUS 1.4: each line of the month's invoices as one row, as it was issued.

The rows of Cost and Usage with the same `InvoiceId` and `InvoiceDetailId` add up to its `BilledCost`. Of a voided
invoice nothing is owed: there it is 0, as in Cost and Usage, and `x_VoidedCost` has what it was issued with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from jobs.exports.columns import COST, INSTANT, PRICE, QUANTITY, TEXT
from jobs.exports.invoiced import NOTHING
from jobs.exports.month import UNKNOWN_MODEL, Charge, Month
from jobs.queries.invoices import month_text
from jobs.queries.reading import Database, select
from metering.invoices import FEES, USAGE
from metering.plan_terms import Fee
from metering.price_models import model_words

INVOICE_DETAIL = pa.schema(
    {
        "BilledCost": COST,
        "BillingAccountId": TEXT,
        "BillingCurrency": TEXT,
        "BillingPeriodEnd": INSTANT,
        "BillingPeriodStart": INSTANT,
        "ChargeCategory": TEXT,
        "InvoiceDetailCreated": INSTANT,
        "InvoiceDetailDescription": TEXT,
        "InvoiceDetailGrain": TEXT,
        "InvoiceDetailId": TEXT,
        "InvoiceDetailLastUpdated": INSTANT,
        "InvoiceId": TEXT,
        "InvoiceIssueDate": INSTANT,
        "InvoiceIssueStatus": TEXT,
        "InvoiceIssuerName": TEXT,
        "PaymentCurrency": TEXT,
        "PaymentDueDate": INSTANT,
        "PaymentTerms": TEXT,
        "ReferenceInvoiceId": TEXT,
        "x_ChargeClass": TEXT,
        "x_Quantity": QUANTITY,
        "x_ReplacesInvoiceId": TEXT,
        "x_UnitPrice": PRICE,
        "x_VoidedCost": COST,
    }
)
"""`x_ReplacesInvoiceId`: the voided invoice that this one was issued again for."""

_LINES = """
    SELECT lines.*, issuer, currency, replaces, opened.at AS opened_at, issued.at AS issued_at, voided.at AS voided_at
    FROM invoices JOIN invoice_lines AS lines ON lines.invoice = invoices.invoice
    JOIN invoice_events AS opened ON opened.invoice = invoices.invoice AND opened.state = 'Open'
    JOIN invoice_events AS issued ON issued.invoice = invoices.invoice AND issued.state = 'Issued'
    LEFT JOIN invoice_events AS voided ON voided.invoice = invoices.invoice AND voided.state = 'Voided'
    WHERE period = %(month)s AND (%(accounts)s::text[] IS NULL OR invoices.account = ANY (%(accounts)s))
    ORDER BY issuer, number, line
"""
_CATEGORIES = {USAGE: "Usage", Fee.FLAT: "Purchase"}


def invoice_details(
    database: Database, month: Month, accounts: Sequence[str], rows_per_batch: int
) -> Iterator[list[Charge]]:
    """Rows of INVOICE_DETAIL, of the invoices of `accounts` (none: of all), also of those that are voided."""
    lines = select(database, _LINES, {"month": month.first, "accounts": list(accounts) or None})
    while batch := list(islice(lines, rows_per_batch)):
        yield [_detail(month, line) for line in batch]


def _detail(month: Month, line: Mapping[str, Any]) -> Charge:
    head, is_voided = month.head(line["account"]), line["voided_at"] is not None
    return {
        "BilledCost": NOTHING if is_voided else line["amount"],
        "BillingAccountId": head.account,
        "BillingCurrency": line["currency"],
        "BillingPeriodEnd": head.end,
        "BillingPeriodStart": head.start,
        "ChargeCategory": _CATEGORIES.get(line["kind"], "Adjustment"),
        "InvoiceDetailCreated": line["opened_at"],
        "InvoiceDetailDescription": _description(line),
        "InvoiceDetailGrain": json.dumps(_grain(head.account, line), ensure_ascii=False),
        "InvoiceDetailId": str(line["line"]),
        "InvoiceDetailLastUpdated": line["voided_at"] or line["issued_at"],
        "InvoiceId": line["invoice"],
        "InvoiceIssueDate": line["issued_at"],
        "InvoiceIssueStatus": "Voided" if is_voided else "Issued",
        "InvoiceIssuerName": line["issuer"],
        "PaymentCurrency": line["currency"],
        "PaymentDueDate": None,
        "PaymentTerms": month.seller.payment_terms,
        "ReferenceInvoiceId": line["corrects_invoice"] or line["invoice"],
        "x_ChargeClass": line["charge_class"],
        "x_Quantity": line["quantity"],
        "x_ReplacesInvoiceId": line["replaces"],
        "x_UnitPrice": line["unit_price"],
        "x_VoidedCost": line["amount"] if is_voided else None,
    }


def _description(line: Mapping[str, Any]) -> str:
    corrects = ""
    if line["charge_class"] is not None:
        named = f"line {line['corrects_line']} of {line['corrects_invoice']}" if line["corrects_invoice"] else "later"
        corrects = f", {month_text(line['original_period'])}: {named}"
    if line["kind"] in FEES:
        return f"{line['kind']} of the plan {line['tier']}{corrects}"
    if line["kind"] != USAGE:
        return f"{line['kind'].replace('_', ' ')}{corrects}"
    tier = "" if line["tier"] is None else f", {line['tier']}"
    return f"{line['meter']} of {model_words(line['model'] or UNKNOWN_MODEL)}{tier}{corrects}"


def _grain(head: str, line: Mapping[str, Any]) -> Mapping[str, str]:
    """What tells a line from the others of its invoice; both of a pair have the same."""
    found = {"x_BillingMonth": month_text(line["original_period"])}
    if line["account"] != head:
        found["SubAccountId"] = line["account"]
    if line["kind"] in FEES:
        return {**found, "ServiceName": line["tier"], "x_Fee": line["kind"]}
    if line["kind"] != USAGE:
        return {**found, "x_Kind": line["kind"]}
    model = line["model"] or UNKNOWN_MODEL
    found |= {"ServiceName": model_words(model), "SkuId": f"{model}/{line['meter']}", "SkuMeter": line["meter"]}
    if line["price_version"] is not None:
        found["x_PriceVersion"] = str(line["price_version"])
    return found if line["tier"] is None else {**found, "x_Tier": line["tier"]}
