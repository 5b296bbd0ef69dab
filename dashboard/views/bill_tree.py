"""The tree of bills: accounts below their parents, each with the sum of the bills below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from dashboard.exact import total
from dashboard.queries.bills import Period


class Billed(Protocol):
    """What one account owes in one currency."""

    @property
    def period(self) -> Period:
        """Of the account."""

    @property
    def currency(self) -> str | None:
        """None: what has no currency has no amount."""

    @property
    def amount(self) -> Decimal | None:
        """None: nothing of it has a price."""


@dataclass(frozen=True)
class Branch:
    """An account's place in a tree in one currency; `amount`: with all below it, None where nothing has a price."""

    account: str
    currency: str | None
    depth: int
    has_below: bool
    amount: Decimal | None


def branches(totals: Sequence[Billed], periods: Mapping[str, Period], account: str | None = None) -> list[Branch]:
    """The tree of accounts by name; per currency, those with usage in it and all their ancestors.

    With `account` that one and its descendants. Two currencies are never added.
    """
    below: dict[str | None, list[str]] = {}
    for name, period in sorted(periods.items()):
        below.setdefault(period.parent if period.parent in periods else None, []).append(name)
    amounts = {(total.period.account, total.currency): total.amount for total in totals}
    currencies = sorted({currency for _, currency in amounts}, key=lambda currency: currency or "")

    def walked(name: str, depth: int) -> Iterator[Branch]:
        lower = [branch for child in below.get(name, []) for branch in walked(child, depth + 1)]
        for currency in currencies:
            inner = [branch for branch in lower if branch.currency == currency]
            children = [branch.amount for branch in inner if branch.depth == depth + 1]
            parts = [part for part in (amounts.get((name, currency)), *children) if part is not None]
            if inner or (name, currency) in amounts:
                yield Branch(name, currency, depth, bool(inner), total(parts) if parts else None)
                yield from inner

    heads = below.get(None, []) if account is None else [name for name in (account,) if name in periods]
    return [branch for head in heads for branch in walked(head, 0)]
