"""Hand an issued invoice to Stripe: a draft invoice there, with an invoice item for each line that has an amount.

weir invoices show INVOICE --format json | python examples/stripe_invoice_items.py CUSTOMERS

CUSTOMERS is a JSON file, account → customer id; the key is in STRIPE_KEY. Killed anywhere, run it again: a request has
the same idempotency key each time, and after a day, when Stripe forgets these, what is there is found by its metadata.
Do not run it twice at once. The draft is yours to finalize. Taxes, due dates and payment are Stripe's.
"""

import json
import os
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import httpx

API = os.environ.get("STRIPE_API", "https://api.stripe.com/v1")
MAX_ITEMS = 250  # of an invoice in Stripe
# How Stripe counts amounts; all other currencies have two decimals, also ISK and UGX. See its page on currencies.
NO_DECIMALS = {"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"}
THREE_DECIMALS = {"BHD", "JOD", "KWD", "OMR", "TND"}
TRIES = 5
NO_USAGE = {  # what a line is where it has no meter
    "flat": "flat fee of the plan {tier}",
    "minimum": "up to the minimum of the plan {tier}",
    "maximum": "above the maximum of the plan {tier}",
    "write_off": "written off",
}


def stripe_amount(amount: str, currency: str) -> int:
    """In Stripe's smallest unit. Never rounded: the invoice has been."""
    decimals = 0 if currency in NO_DECIMALS else 3 if currency in THREE_DECIMALS else 2
    units = Decimal(amount).scaleb(decimals)
    if units != int(units) or (currency in THREE_DECIMALS and int(units) % 10):
        sys.exit(f"Stripe takes no {amount} {currency}: set close.minor_units for it, and issue the invoice again.")
    return int(units)


def description(line: dict) -> str:
    """What the customer reads."""
    correction = f", correction of {line['original_period']}" if line["charge_class"] else ""
    if line["kind"] in NO_USAGE:
        return NO_USAGE[line["kind"]].format(tier=line["tier"]) + correction
    tier = f", {line['tier']}" if line["tier"] else ""
    quantity = f": {Decimal(line['quantity']):,f}" if Decimal(line["quantity"]) else ""
    return f"{line['model'] or 'unknown model'} {line['meter']}{tier}{correction}{quantity}"


def ask(http: httpx.Client, method: str, path: str, key: str | None = None, **values: str) -> dict:
    """One request, again where Stripe or the network fails: the same key has Stripe do it once."""
    sent = {"params": values} if method == "GET" else {"data": values, "headers": {"Idempotency-Key": str(key)}}
    for attempt in range(TRIES):
        try:
            answer = http.request(method, f"{API}/{path}", **sent)
        except httpx.TransportError as error:
            problem = str(error)
        else:
            if answer.is_success:
                return answer.json()
            problem = f"{answer.status_code} {answer.text}"
            if answer.status_code not in (409, 429) and answer.status_code < 500:
                break
        time.sleep(0.5 * 2**attempt)
    sys.exit(f"{method} {path} failed: {problem}. Run it again: nothing is done twice.")


def listed(http: httpx.Client, path: str, **values: str) -> list[dict]:
    """All objects of a list."""
    found: list[dict] = []
    while True:
        after = {"starting_after": found[-1]["id"]} if found else {}
        page = ask(http, "GET", path, limit="100", **values, **after)
        found += page["data"]
        if not page["has_more"]:
            return found


def draft(http: httpx.Client, invoice: dict, customer: str) -> dict:
    """Stripe's invoice for this one: found, or created empty."""
    for known in listed(http, "invoices", customer=customer):
        if known["metadata"].get("weir_invoice") == invoice["invoice"]:
            if known["metadata"]["weir_hash"] != invoice["hash"]:
                sys.exit(f"{known['id']} has another {invoice['invoice']}: of another database? Look before you send.")
            return known
    return ask(
        http,
        "POST",
        "invoices",
        f"{invoice['hash']}-invoice",
        **{
            "customer": customer,
            "currency": invoice["currency"].lower(),
            "auto_advance": "false",
            "pending_invoice_items_behavior": "exclude",
            "description": f"{invoice['invoice']}, {invoice['period']}",
            "metadata[weir_invoice]": invoice["invoice"],
            "metadata[weir_hash]": invoice["hash"],
        },
    )


invoice = json.load(sys.stdin)
customers = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
if invoice["state"] != "Issued":
    sys.exit(f"{invoice['invoice']} is {invoice['state']}: only an issued invoice is paid.")
if invoice["account"] not in customers:
    sys.exit(f"{sys.argv[1]} has no customer for the account {invoice['account']}.")
customer, currency = customers[invoice["account"]], invoice["currency"]
lines = [line for line in invoice["lines"] if Decimal(line["amount"])]
if len(lines) > MAX_ITEMS:
    sys.exit(f"{invoice['invoice']} has {len(lines)} lines with an amount, and Stripe takes {MAX_ITEMS}: add some up.")
amounts = [stripe_amount(line["amount"], currency) for line in lines]
start, end = (
    str(int(datetime.fromisoformat(invoice[name]).astimezone(UTC).timestamp()))
    for name in ("period_start", "period_end")
)

with httpx.Client(auth=(os.environ["STRIPE_KEY"], ""), timeout=30) as http:
    target = draft(http, invoice, customer)
    if target["status"] != "draft":
        sys.exit(f"{target['id']} is {target['status']}: {invoice['invoice']} was sent before.")
    there = {item["metadata"].get("weir_line") for item in listed(http, "invoiceitems", invoice=target["id"])}
    for line, amount in zip(lines, amounts, strict=True):
        if str(line["line"]) in there:
            continue
        ask(
            http,
            "POST",
            "invoiceitems",
            f"{invoice['hash']}-line-{line['line']}",
            **{
                "customer": customer,
                "invoice": target["id"],
                "amount": str(amount),
                "currency": currency.lower(),
                "description": description(line),
                "period[start]": start,
                "period[end]": end,
                "metadata[weir_line]": str(line["line"]),
            },
        )
    items = listed(http, "invoiceitems", invoice=target["id"])
if sum(item["amount"] for item in items) != stripe_amount(invoice["total"], currency):
    sys.exit(f"{target['id']} does not add up to {invoice['total']} {currency}: somebody else has changed it.")
print(f"{invoice['invoice']} is {target['id']}: {len(items)} items, {invoice['total']} {currency}")
