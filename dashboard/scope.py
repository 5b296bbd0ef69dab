"""Whose rows may be seen. Every read carries a scope: there is no read without one."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Scope:
    """Some accounts, or (`accounts` None) all of them."""

    accounts: frozenset[str] | None = None

    @classmethod
    def parse(cls, text: str | None) -> Scope:
        """`acme,globex`; None is all accounts. Raises ValueError for a text that names none: all would be a guess."""
        if text is None:
            return cls()
        accounts = frozenset(name.strip() for name in text.split(",") if name.strip())
        if not accounts:
            raise ValueError("WEIR_ACCOUNTS is set but names no account: name some, comma-separated, or unset it.")
        return cls(accounts)

    def within(self, other: Scope) -> Scope:
        """What is in both; perhaps nothing."""
        if self.accounts is None:
            return other
        return self if other.accounts is None else Scope(self.accounts & other.accounts)

    @property
    def is_all(self) -> bool:
        """Whether nothing is hidden; only then may numbers be shown that sum over all accounts."""
        return self.accounts is None

    @property
    def setting(self) -> str:
        """What `weir.accounts` is set to, for the policies of row-level security to read: `*` or a JSON array."""
        return "*" if self.accounts is None else json.dumps(sorted(self.accounts))

    def holds(self, column: str = "account") -> pl.Expr:
        """The same rule for a Delta table's rows: null accounts belong to no scope."""
        if self.accounts is None:
            return pl.lit(True)
        return pl.col(column).is_in(sorted(self.accounts)).fill_null(False)
