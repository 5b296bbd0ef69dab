"""Contracts: what each account pays for a unit of each meter at an instant, by the rows that the catalog has now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from jobs.billing_progress import Row
from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database, select

COLUMNS = (
    *("account", "plan", "plan_name", "currency", "model", "meter", "unit_price", "effective_from", "in_force_until"),
    *("account_from", "changed_at"),
)

KEY = ("account", "model", "meter", "currency", "plan")
"""What rows are ordered by: no two have the same values."""
_STATEMENT = f"""
    SELECT {", ".join(COLUMNS).replace("unit_price", "trim_scale(unit_price) AS unit_price")}
    FROM catalog.contracts_at(coalesce(%(at)s::timestamptz, now()))
    WHERE (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(plan)s::text IS NULL OR plan = %(plan)s)
      AND (%(model)s::text IS NULL OR model = %(model)s)
      AND (%(meter)s::text IS NULL OR meter = %(meter)s)
    ORDER BY {", ".join(KEY)}
"""


@dataclass(frozen=True)
class ContractQuery:
    """Which contracts to list, and as of when; None: now, and all."""

    at: datetime | None = None
    accounts: tuple[str, ...] = ()
    plan: str | None = None
    model: str | None = None
    meter: str | None = None
    page: Page | None = None


def contract_rows(database: Database, query: ContractQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, by account, model and meter."""
    statement, more = paged(_STATEMENT, KEY, query.page)
    return select(
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
