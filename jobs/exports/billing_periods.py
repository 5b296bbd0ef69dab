"""Billing Period of FOCUS 1.4: what the calendars of accounts make of one month, and whether each is closed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from jobs.exports.columns import INSTANT, TEXT
from jobs.exports.month import Charge, Month
from jobs.queries.plan_fees import read_plan_months
from jobs.queries.reading import Database

BILLING_PERIOD = pa.schema(
    {
        "BillingPeriodCreated": INSTANT,
        "BillingPeriodEnd": INSTANT,
        "BillingPeriodLastUpdated": INSTANT,
        "BillingPeriodStart": INSTANT,
        "BillingPeriodStatus": TEXT,
        "InvoiceIssuerName": TEXT,
    }
)
# What has no model or no currency is on no invoice, or at nothing alone.
_USED = """
    SELECT DISTINCT account FROM (
        SELECT account FROM usage_months
        WHERE month = %(month)s AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
          AND model IS NOT NULL AND currency IS NOT NULL
        GROUP BY account, model, meter, currency, price_version HAVING sum(quantity) <> 0
    ) AS used
"""
# A currency is issued where any of its invoices is not voided; what was voided may be issued again, by whomever.
_INVOICED = """
    SELECT account, issuer, max(at) AS updated_at,
           bool_and(bool_and(is_issued)) OVER (PARTITION BY account) AS is_issued
    FROM (
        SELECT account, issuer, latest.at,
               bool_or(latest.state <> 'Voided') OVER (PARTITION BY account, currency) AS is_issued
        FROM invoices, LATERAL (
            SELECT at, state FROM invoice_events AS events
            WHERE events.invoice = invoices.invoice ORDER BY sequence DESC LIMIT 1
        ) AS latest
        WHERE period = %(month)s AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
    ) AS of_invoices
    GROUP BY account, issuer
"""


def billing_periods(
    database: Database, month: Month, accounts: Sequence[str], closed_until: datetime | None
) -> list[Charge]:
    """Rows of BILLING_PERIOD, one for each period and issuer. `closed_until`: what ends by then is closed.

    A period is closed once it is over and each account that has anything to bill in it has an invoice of it that is
    not voided. Its record begins with the period, and was changed last by the last state of an invoice.
    """
    parameters = {"month": month.first, "accounts": list(accounts) or None}
    plans = read_plan_months(database, month.first, lambda: month.known, list(accounts) or None)
    to_bill = {row["account"] for row in database.execute(_USED, parameters)}
    to_bill |= {
        account
        for account, months in plans.every.items()
        if any(plan.flat_fee or plan.minimum for plan in months.values())
    }
    invoiced = database.execute(_INVOICED, parameters).fetchall()
    named = set(accounts) or {*month.known, *to_bill, *(row["account"] for row in invoiced)}
    places = {account: (month.head(account).start, month.head(account).end) for account in named}
    issuers: defaultdict[tuple[datetime, datetime], dict[str, datetime]] = defaultdict(dict)
    for place in places.values():
        issuers[place][month.seller.issuer] = place[0]
    for row in invoiced:
        place = places[row["account"]]
        known = issuers[place]
        known[row["issuer"]] = max(known.get(row["issuer"], place[0]), row["updated_at"])
        if row["is_issued"]:
            to_bill.discard(row["account"])
    is_open = {places[account] for account in to_bill}
    return [
        {
            "BillingPeriodCreated": start,
            "BillingPeriodEnd": end,
            "BillingPeriodLastUpdated": updated_at,
            "BillingPeriodStart": start,
            "BillingPeriodStatus": "Open" if (start, end) in is_open or not _is_over(end, closed_until) else "Closed",
            "InvoiceIssuerName": issuer,
        }
        for (start, end), found in sorted(issuers.items())
        for issuer, updated_at in sorted(found.items())
    ]


def _is_over(end: datetime, closed_until: datetime | None) -> bool:
    return closed_until is not None and closed_until >= end
