"""What a month's bill has beside the sums of usage: fees of plans, and the units that a plan includes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import date

from jobs.billing_progress import Database, Row
from jobs.explain.documents import Document
from jobs.queries.bills import TIER_INCLUDED, read_month
from metering.invoices import FEES
from metering.price_tiers import Kind

_INCLUDED = ("model", "meter", "currency", "price_version", "quantity")


def beside_usage(
    database: Database, account: str, month: date, is_asked: Callable[[Row], bool], versions: Collection[int | None]
) -> Document:
    """`fees` (`plan`, `fee`, `days`, `currency`, `amount`; null: not known yet) and `included` of the account's month.

    No row of usage adds a fee. What is `included` (`model`, `meter`, `currency`, `price_version`, `quantity`) are units
    of lines that the bill has at nothing. Where tiers or packages price them their `model` is what the price is for:
    they are asked for with one of the price `versions`.
    """

    def is_of_ladder(line: Row) -> bool:
        return line["kind"] not in {None, Kind.UNIT, *FEES} and line["price_version"] in versions

    lines = [line for line in read_month(database, month, [account]).lines if is_asked(line) or is_of_ladder(line)]
    return {
        "fees": [
            {
                "plan": line["tier"],
                "fee": line["kind"],
                "days": int(line["quantity"]),
                "currency": line["currency"],
                "amount": line["amount"],
            }
            for line in lines
            if line["kind"] in FEES
        ],
        "included": [
            {name: line[name] for name in _INCLUDED}
            for line in lines
            if line["tier"] == TIER_INCLUDED and line["kind"] not in FEES
        ],
    }
