"""What keeps a month of an account from being closed, in sentences that say what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from enum import StrEnum

from jobs.billing_progress import Database, Row
from jobs.queries.bills import Period
from jobs.queries.invoices import month_text
from metering.instants import rfc3339
from metering.invoices import FEES
from metering.pricing import BILLED_AS_PART

_MAX_NAMED = 3
_HELD = """
    SELECT account, count(*) AS rows FROM stragglers
    WHERE account = ANY (%(accounts)s) AND (decision = 'hold' OR settled = 0)
      AND coalesce(day, window_start::date) >= %(month)s
      AND coalesce(day, window_start::date) < (%(month)s::date + interval '1 month')::date
    GROUP BY account
"""
_WAITING = """
    SELECT account, count(*) AS rows FROM late_members
    WHERE account = ANY (%(accounts)s)
      AND first_day >= %(month)s AND first_day < (%(month)s::date + interval '1 month')::date
    GROUP BY account
"""


class Open(StrEnum):
    """What an operator may leave open when a month is closed, with a reason. Its correction comes later."""

    UNPRICED = "unpriced"
    HELD = "held"
    WAITING = "waiting"


def not_over(period: Period, closed_until: datetime | None) -> str | None:
    """Until F has passed the end of the month and the grace of every meter, usage of it may still be on time."""
    if closed_until is not None and closed_until >= period.end:
        return None
    reached = "nothing is billed yet" if closed_until is None else f"windows are closed until {rfc3339(closed_until)}"
    return f"the month ends at {rfc3339(period.end)}, and {reached}"


def open_rows(database: Database, accounts: Collection[str], month: date) -> Mapping[str, Mapping[Open, str]]:
    """Of the accounts that have any: what of the month is held, or waits."""
    found: defaultdict[str, dict[Open, str]] = defaultdict(dict)
    parameters = {"accounts": list(accounts), "month": month}
    for row in database.execute(_HELD, parameters).fetchall():
        found[row["account"]][Open.HELD] = (
            f"{_waiting(row['rows'], 'straggler')} for a decision: `weir stragglers --decision hold --account "
            f"{row['account']}`"
        )
    for row in database.execute(_WAITING, parameters).fetchall():
        found[row["account"]][Open.WAITING] = (
            f"{_waiting(row['rows'], 'late row')} until the period has closed for all accounts"
        )
    return found


def _waiting(number: int, noun: str) -> str:
    return f"{number} {noun} waits" if number == 1 else f"{number} {noun}s wait"


def unpriced(lines: Iterable[Row]) -> str | None:
    """Usage of a model that has no price. What has no model can never have one, and stays on the invoice at nothing."""
    named = sorted(
        {f"{line['model']} {line['meter']}" for line in lines if line["amount"] is None and line["model"] is not None}
    )
    if not named:
        return None
    more = "" if len(named) <= _MAX_NAMED else f" and {len(named) - _MAX_NAMED} more"
    return f"usage has no price: {', '.join(named[:_MAX_NAMED])}{more}; add prices, then run `weir audit`"


def unknown_amount(lines: Iterable[Row]) -> str | None:
    """Why the amount of usage that has a price is not known. Taken for unpriced, it would credit a closed month."""
    for line in lines:
        if line["amount"] is None and line["kind"] in FEES:
            return (
                f"what the plan {line['tier']} costs depends on usage whose plan or amount is not known yet: joins "
                "stores each version of a price; see I6 of `weir audit`"
            )
        if line["amount"] is None and line["price_version"] is not None and line["price_version"] > BILLED_AS_PART:
            return (
                f"{line['meter']} of {line['model']} has the price version {line['price_version']}, whose tiers are "
                "not known: see I6 of `weir audit`"
            )
    return None


def refusal(month: date, found: Mapping[Open, str], allowed: Collection[Open]) -> str | None:
    """What of an account's month is open and may not be, in one sentence."""
    texts = [f"{text} (or --allow {what})" for what, text in found.items() if what not in allowed]
    return f"{month_text(month)}: {'; '.join(texts)}" if texts else None
