"""Effective prices: what each account pays for a unit of each meter now, from the catalog in Postgres."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dashboard.backend import Backend
from jobs.queries.contracts import TERMS, words_of

MAX_ROWS = 1_000


@dataclass(frozen=True)
class Contract:
    """`in_force_until` is when the next price begins or this one ends; None: not known."""

    account: str
    plan: str
    model: str
    meter: str
    unit_price: Decimal | None
    currency: str
    effective_from: datetime
    in_force_until: datetime | None
    terms: str | None = None
    """Tiers or a package, in words; then there is no unit price."""


@dataclass(frozen=True)
class Contracts:
    """At most MAX_ROWS, by account, model and meter; right until `right_until` if no row changes."""

    rows: tuple[Contract, ...]
    is_cut: bool
    right_until: datetime | None


_CONTRACTS = f"""
    SELECT account, plan, model, meter, trim_scale(paid.unit_price) AS unit_price, currency, effective_from,
           in_force_until, coalesce(priced.terms, ended.terms)::text AS terms
    FROM catalog.effective_prices AS paid {TERMS}
    WHERE %(account)s::text IS NULL OR account = %(account)s
    ORDER BY account, model, meter LIMIT %(limit)s
"""


def read_contracts(backend: Backend, account: str | None = None) -> Contracts:
    """Those of one account, or of all of the scope."""
    with backend.snapshot() as cursor:
        rows = cursor.execute(_CONTRACTS, {"account": account, "limit": MAX_ROWS + 1}).fetchall()
        ends = cursor.execute("SELECT catalog.contracts_right_until(now()) AS ends").fetchone() or {"ends": None}
    contracts = tuple(Contract(**{**row, "terms": words_of(row["terms"])}) for row in rows[:MAX_ROWS])
    return Contracts(contracts, len(rows) > MAX_ROWS, ends["ends"])
