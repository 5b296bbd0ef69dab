"""Contracts: what each account pays for a unit of each meter at an instant, by the rows that the catalog has now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from jobs.billing_progress import Row
from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database, select
from metering.plan_terms import parse_terms

COLUMNS = (
    *("account", "plan", "plan_name", "currency", "model", "meter", "unit_price", "effective_from", "in_force_until"),
    *("account_from", "changed_at", "terms"),
)

KEY = ("account", "model", "meter", "currency", "plan")
"""What rows are ordered by: no two have the same values."""
TERMS = """
    LEFT JOIN catalog.prices AS priced USING (plan, model, meter, currency, effective_from)
    LEFT JOIN catalog.ended_prices AS ended USING (plan, model, meter, currency, effective_from)
"""
"""The rows of `paid`, contracts, with what they cost where that is no unit price."""
_SELECTED = {
    **{name: name for name in ("plan", "model", "meter", "currency", "effective_from")},
    "unit_price": "trim_scale(paid.unit_price) AS unit_price",
    "changed_at": "paid.changed_at",
    "terms": "coalesce(priced.terms, ended.terms)::text AS terms",
}
_STATEMENT = f"""
    SELECT {", ".join(_SELECTED.get(name, f"paid.{name}") for name in COLUMNS)}
    FROM catalog.contracts_at(coalesce(%(at)s::timestamptz, now())) AS paid
    {TERMS}
    WHERE (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(plan)s::text IS NULL OR plan = %(plan)s)
      AND (%(model)s::text IS NULL OR model = %(model)s OR %(model)s = ANY (catalog.models_of(model)))
      AND (%(meter)s::text IS NULL OR meter = %(meter)s)
    ORDER BY {", ".join(KEY)}
"""


@dataclass(frozen=True)
class ContractQuery:
    """Which contracts to list, and as of when; None: now, and all.

    `model`: those whose price names it, alone, in a list or with conditions; or a price as the catalog writes it.
    """

    at: datetime | None = None
    accounts: tuple[str, ...] = ()
    plan: str | None = None
    model: str | None = None
    meter: str | None = None
    page: Page | None = None


def contract_rows(database: Database, query: ContractQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, by account, model and meter.

    `unit_price` is null where the price has tiers or packages, which `terms` says then (in words).
    """
    statement, more = paged(_STATEMENT, KEY, query.page)
    rows = select(
        database,
        statement,
        {
            **more,
            "at": query.at,
            "accounts": list(query.accounts) or None,
            "plan": query.plan,
            "model": query.model,
            "meter": query.meter,
        },
    )
    for row in rows:
        yield {**row, "terms": words_of(row["terms"])}


def words_of(terms: str | None) -> str | None:
    """Tiers or a package of the catalog in words; None for a unit price.

    As text: the JSON of a price that SQL wrote may have numbers, which the database's driver reads as floats.
    """
    return None if terms is None else parse_terms(terms).words
