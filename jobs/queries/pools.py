"""Who pools with whom: accounts whose months have one total for tiers and packages (`catalog.pools`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from jobs.billing_progress import Database
from jobs.queries.reading import Database as Reader
from jobs.queries.reading import select

POOL_COLUMNS = ("parent", "account", "first_month", "end_month", "changed_by", "changed_at")
# Of some accounts: the pools that these have, or are called by. What never was is not listed.
_POOLS = """
    WITH pools AS (SELECT * FROM catalog.pools WHERE end_month IS NULL OR end_month > first_month)
    SELECT parent, account, to_char(first_month, 'YYYY-MM') AS first_month, to_char(end_month, 'YYYY-MM') AS end_month,
           changed_by, changed_at
    FROM pools
    WHERE %(accounts)s::text[] IS NULL OR parent = ANY (%(accounts)s)
       OR parent IN (SELECT own.parent FROM pools AS own WHERE own.account = ANY (%(accounts)s))
    ORDER BY parent, pools.first_month, account
"""
POOLED_IN = """
    SELECT own.account, other.account AS member
    FROM catalog.pools AS own JOIN catalog.pools AS other USING (parent)
    WHERE own.account = ANY (%(accounts)s)
      AND own.first_month <= %(month)s AND (own.end_month IS NULL OR own.end_month > %(month)s)
      AND other.first_month <= %(month)s AND (other.end_month IS NULL OR other.end_month > %(month)s)
"""
"""Of `accounts` that pool in a `month`, a first of a month: all members of the pool, themselves among them."""
POOLED_BEFORE = """
    SELECT DISTINCT own.account, other.account AS member
    FROM catalog.pools AS own JOIN catalog.pools AS other USING (parent)
    WHERE own.account = ANY (%(accounts)s) AND greatest(own.first_month, other.first_month) < %(end)s
      AND greatest(own.first_month, other.first_month)
        < least(coalesce(own.end_month, 'infinity'), coalesce(other.end_month, 'infinity'))
"""
"""The same of any month before `end`."""


def pools_of(database: Database, month: date, accounts: Collection[str]) -> Mapping[str, frozenset[str]]:
    """By account that pools in the month: all members of its pool, itself among them."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in database.execute(POOLED_IN, {"accounts": list(accounts), "month": month}).fetchall():
        found[row["account"]].add(row["member"])
    return {account: frozenset(members) for account, members in found.items()}


def pool_rows(database: Reader, accounts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys POOL_COLUMNS: past, running and announced pools, one for each account; months as YYYY-MM.

    Of some `accounts` (empty: all): those that pool with any of them, or below it.
    """
    return select(database, _POOLS, {"accounts": list(accounts) or None})
