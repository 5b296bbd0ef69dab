"""Months that others were invoiced for, and an account was not: it was refused then, or what it has came later.

The account's invoices begin with a later month, so no close issues them by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date
from functools import partial

from jobs.billing_progress import Database
from jobs.close.account_months import following
from jobs.queries.bills import read_periods
from jobs.queries.plan_fees import AROUND, read_plan_months

_FIRST = "SELECT min(period) AS period FROM invoices"
_OWN = "SELECT account, min(period) AS period FROM invoices WHERE account = ANY (%s) GROUP BY account"
# Before that a plan costs an account nothing (`jobs.queries.plan_fees`).
_BEGUN = "SELECT account, min(effective_from) AS at FROM catalog.account_history WHERE account = ANY (%s) GROUP BY 1"
# What has no model or no currency can be on no invoice, or at nothing alone.
_USED = """
    SELECT DISTINCT account, month FROM (
        SELECT account, month FROM usage_months
        WHERE account = ANY (%(accounts)s) AND month >= %(first)s AND month < %(month)s
          AND model IS NOT NULL AND currency IS NOT NULL
        GROUP BY account, month, model, meter, currency, price_version HAVING sum(quantity) <> 0
    ) AS used
"""


def earlier_months(database: Database, accounts: Sequence[str], month: date) -> Mapping[str, list[date]]:
    """By account the months before `month` with usage or fees, from the first with an invoice of anybody until its own
    first invoice.
    """
    first = database.execute(_FIRST).fetchall()[0]["period"]
    if first is None or first >= month:
        return {}
    own = {row["account"]: row["period"] for row in database.execute(_OWN, [list(accounts)]).fetchall()}
    left = [account for account in accounts if own.get(account, month) > first]
    if not left:
        return {}
    found: defaultdict[str, set[date]] = defaultdict(set)
    for row in database.execute(_USED, {"accounts": left, "first": first, "month": month}).fetchall():
        found[row["account"]].add(row["month"])
    begun = {
        row["account"]: (row["at"] - AROUND).astimezone(UTC).date()
        for row in database.execute(_BEGUN, [left]).fetchall()
    }
    at = first
    while at < month:
        after = following(at)
        without = [account for account in left if own.get(account, month) > at and begun.get(account, month) < after]
        if without:
            plans = read_plan_months(database, at, partial(read_periods, database, at, without), without)
            for account, months in plans.every.items():
                if any(plan.flat_fee or plan.minimum for plan in months.values()):
                    found[account].add(at)
        at = after
    every = {account: sorted(at for at in months if at < own.get(account, month)) for account, months in found.items()}
    return {account: months for account, months in sorted(every.items()) if months}
