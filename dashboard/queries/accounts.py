"""The accounts to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.backend import Backend

MAX_ACCOUNTS = 1_000

# The accounts in use are found by skipping from one to the next in the index: a few pages, however many windows.
_ACCOUNTS = """
    WITH RECURSIVE used AS (
        (SELECT account FROM usage_windows WHERE account >= %(prefix)s ORDER BY account LIMIT 1)
        UNION ALL
        SELECT (SELECT account FROM usage_windows WHERE account > used.account ORDER BY account LIMIT 1)
        FROM used WHERE used.account IS NOT NULL
    )
    SELECT account FROM (
        (SELECT account FROM used WHERE starts_with(account, %(prefix)s) LIMIT %(limit)s)
        UNION
        (SELECT account FROM catalog.accounts WHERE starts_with(account, %(prefix)s) ORDER BY account LIMIT %(limit)s)
    ) AS known
    ORDER BY account LIMIT %(limit)s
"""


@dataclass(frozen=True)
class Accounts:
    """By name, at most MAX_ACCOUNTS; `is_cut`: there are more, which a longer prefix finds."""

    names: tuple[str, ...]
    is_cut: bool


def read_accounts(backend: Backend, prefix: str = "") -> Accounts:
    """Accounts of the catalog and of usage whose names begin with `prefix`."""
    with backend.snapshot() as cursor:
        found = cursor.execute(_ACCOUNTS, {"prefix": prefix, "limit": MAX_ACCOUNTS + 1}).fetchall()
    return Accounts(tuple(row["account"] for row in found[:MAX_ACCOUNTS]), len(found) > MAX_ACCOUNTS)
