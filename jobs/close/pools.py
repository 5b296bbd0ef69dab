"""Who pools is closed together: a share is of what all have used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date

from jobs.billing_progress import Database
from jobs.close.account_months import invoiced
from jobs.queries.pools import pools_of

# What was taken back is no share, and is on no invoice.
_WITH_SHARE = """
    SELECT DISTINCT account FROM usage_months WHERE account = ANY (%s) AND month = %s
    GROUP BY account, model, meter, currency, price_version HAVING sum(quantity) <> 0
"""
_POOLED = "it pools with {}: close all of them together, as a share is of what all have used"


def parted(database: Database, month: date, accounts: Collection[str]) -> Mapping[str, str]:
    """Those of `accounts` that pool with others that are not among them, and have usage without an invoice; and why."""
    pools = pools_of(database, month, accounts)
    every = {member for members in pools.values() for member in members}
    used = database.execute(_WITH_SHARE, [sorted(every.difference(accounts)), month]).fetchall() if every else []
    others = invoiced(database, {row["account"] for row in used})
    left = {account for account, months in others.items() if not months.is_closed(month)}
    return {
        account: _POOLED.format(", ".join(missing))
        for account, members in pools.items()
        if (missing := sorted(members & left))
    }
