"""Which accounts' usage is part of whose: by the parents that the catalog names now, however long ago it was used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.reading import Database

_BELOW = """
    SELECT head, account FROM catalog.accounts_below
    WHERE head = ANY (coalesce(%(heads)s, ARRAY(SELECT account FROM catalog.accounts WHERE parent IS NULL)))
    ORDER BY head, account
"""


@dataclass(frozen=True)
class RolledUp:
    """Pairs of an account and whom it is summed into. What stands in none is summed into itself, if it is listed."""

    members: Sequence[str]
    heads: Sequence[str]

    @classmethod
    def of(cls, database: Database, accounts: Sequence[str]) -> RolledUp:
        """All below each of `accounts`; without any, all below each that has no parent."""
        pairs = {(row["account"], row["head"]) for row in database.execute(_BELOW, {"heads": list(accounts) or None})}
        pairs |= {(account, account) for account in accounts}
        members, heads = zip(*sorted(pairs), strict=True) if pairs else ((), ())
        return cls(members, heads)
