"""Effective prices: what each account pays for a unit of each meter now, from the catalog in Postgres."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dashboard.backend import Backend
from jobs.queries.contracts import contract_source, words_of

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
    is_stored: bool = False
    """Whether they are read from the table that ingestion keeps; else what changed is still to be folded."""


_CONTRACTS = """
    SELECT account, plan, model, meter, trim_scale(paid.unit_price) AS unit_price, currency, effective_from,
           in_force_until, {terms}
    FROM {source}
    WHERE %(account)s::text IS NULL OR account = %(account)s
    ORDER BY account, model, meter LIMIT %(limit)s
"""


def read_contracts(backend: Backend, account: str | None = None) -> Contracts:
    """Those of one account, or of all of the scope."""
    with backend.snapshot() as cursor:
        source = contract_source(cursor, accounts=[account] if account else ())
        statement = _CONTRACTS.format(source=source.relation, terms=source.terms)
        parameters = {"account": account, "limit": MAX_ROWS + 1, "at": source.at}
        rows = cursor.execute(statement, parameters).fetchall()
        ends = cursor.execute("SELECT catalog.contracts_right_until(now()) AS ends").fetchone() or {"ends": None}
    contracts = tuple(Contract(**{**row, "terms": words_of(row["terms"])}) for row in rows[:MAX_ROWS])
    return Contracts(contracts, len(rows) > MAX_ROWS, ends["ends"], source.is_stored)
