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
        SELECT account, month
        FROM unnest(%(accounts)s::text[], %(untils)s::date[]) AS own (account, until)
        JOIN usage_months USING (account)
        WHERE month >= %(first)s AND month < until AND model IS NOT NULL AND currency IS NOT NULL
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
    left = {account: until for account in accounts if (until := min(own.get(account, month), month)) > first}
    if not left:
        return {}
    found: defaultdict[str, set[date]] = defaultdict(set)
    used = {"accounts": list(left), "untils": list(left.values()), "first": first}
    for row in database.execute(_USED, used).fetchall():
        found[row["account"]].add(row["month"])
    begun = {
        row["account"]: (row["at"] - AROUND).astimezone(UTC).date()
        for row in database.execute(_BEGUN, [list(left)]).fetchall()
    }
    at = first
    while at < month:
        after = following(at)
        without = [account for account, until in left.items() if until > at and begun.get(account, month) < after]
        if without:
            plans = read_plan_months(database, at, partial(read_periods, database, at, without), without)
            for account, months in plans.every.items():
                if any(plan.flat_fee or plan.minimum for plan in months.values()):
                    found[account].add(at)
        at = after
    return {account: sorted(months) for account, months in sorted(found.items())}
