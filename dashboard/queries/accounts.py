"""Which accounts there are to choose from."""

from __future__ import annotations

from dashboard.backend import Backend

MOST_ACCOUNTS = 1_000

# The accounts in use are found by skipping from one to the next in the index: a few pages, however many windows.
_ACCOUNTS = """
    WITH RECURSIVE used AS (
        (SELECT account FROM usage_windows ORDER BY account LIMIT 1)
        UNION ALL
        SELECT (SELECT account FROM usage_windows WHERE account > used.account ORDER BY account LIMIT 1)
        FROM used WHERE used.account IS NOT NULL
    )
    SELECT account FROM (SELECT account FROM used UNION SELECT account FROM catalog.accounts) AS known
    WHERE account IS NOT NULL ORDER BY account LIMIT %s
"""


def read_accounts(backend: Backend) -> tuple[str, ...]:
    """Accounts of the catalog and of usage, by name, at most MOST_ACCOUNTS."""
    with backend.snapshot() as cursor:
        return tuple(row["account"] for row in cursor.execute(_ACCOUNTS, [MOST_ACCOUNTS]).fetchall())
