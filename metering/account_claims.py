"""The accounts that a claim of an identity provider's token names."""

from __future__ import annotations

ALL = "*"
"""The value of the claim of users who see every account."""


def accounts_of(claim: object) -> frozenset[str] | None:
    """`["acme", "globex"]` or `acme,globex`; None is all accounts. What is no text names no account."""
    names = claim.split(",") if isinstance(claim, str) else claim if isinstance(claim, list | tuple) else []
    accounts = frozenset(name.strip() for name in names if isinstance(name, str) and name.strip())
    return None if accounts == {ALL} else accounts - {ALL}
