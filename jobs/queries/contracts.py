"""Contracts: what each account pays for a unit of each meter at an instant, by the rows that the catalog has now.

Where the table that ingestion keeps (`catalog.effective_prices_now`) is right for the accounts and the instant, it is
read; else the function that it is made by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import Cursor
from psycopg.rows import DictRow

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
STORED = "catalog.effective_prices_now AS paid"
COMPUTED = f"catalog.contracts_at(%(at)s) AS paid {TERMS}"
_IS_STORED = """
    SELECT requested.at, EXISTS (SELECT FROM catalog.effective_prices_progress WHERE as_of <= requested.at)
        AND NOT EXISTS (
            SELECT FROM catalog.effective_prices_due AS due
            WHERE due_at <= requested.at
              AND (%(accounts)s::text[] IS NULL OR account = '' OR account = ANY (%(accounts)s))
        ) AS is_stored
    FROM (SELECT coalesce(%(at)s::timestamptz, now())) AS requested (at)
"""
_SELECTED = {
    **{name: name for name in ("plan", "model", "meter", "currency", "effective_from")},
    "unit_price": "trim_scale(paid.unit_price) AS unit_price",
    "changed_at": "paid.changed_at",
}
_STATEMENT = f"""
    SELECT {", ".join(_SELECTED.get(name, f"paid.{name}") for name in COLUMNS if name != "terms")}, {{terms}}
    FROM {{source}}
    WHERE (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND account >= %(first)s
      AND (%(plan)s::text IS NULL OR plan = %(plan)s)
      AND (%(model)s::text IS NULL OR model = %(model)s OR %(model)s = ANY (catalog.models_of(model)))
      AND (%(meter)s::text IS NULL OR meter = %(meter)s)
    ORDER BY {", ".join(KEY)}
"""
_TERMS = {STORED: "terms::text AS terms", COMPUTED: "coalesce(priced.terms, ended.terms)::text AS terms"}


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


@dataclass(frozen=True)
class ContractSource:
    """Where contracts `at` an instant are read from, within one snapshot."""

    at: datetime
    is_stored: bool
    """Whether the table has them: no change of these accounts is still to be folded, nor has the clock made one."""

    @property
    def relation(self) -> str:
        """SQL that follows FROM, with the columns of the view; its parameter is `at`."""
        return STORED if self.is_stored else COMPUTED

    @property
    def terms(self) -> str:
        """The column `terms`: tiers or a package as the text of its JSON."""
        return _TERMS[self.relation]


def contract_source(
    database: Database | Cursor[DictRow], at: datetime | None = None, accounts: Sequence[str] = ()
) -> ContractSource:
    """The table where it is right `at` this instant (None: now) for these accounts (none: all that are seen).

    `database` reads one snapshot, and rows of it as dictionaries: only then are notes and rows of one moment.
    """
    found = database.execute(_IS_STORED, {"at": at, "accounts": list(accounts) or None}).fetchone()
    assert found is not None
    return ContractSource(found["at"], found["is_stored"])


def contract_rows(database: Database, query: ContractQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, by account, model and meter.

    `unit_price` is null where the price has tiers or packages, which `terms` says then (in words).
    """
    source = contract_source(database, query.at, query.accounts)
    of_source = _STATEMENT.format(source=source.relation, terms=source.terms)
    statement, more = paged(of_source, KEY, query.page)
    rows = select(
        database,
        statement,
        {
            **more,
            "at": source.at,
            "accounts": list(query.accounts) or None,
            # Of the first row's account, so that a page begins by index.
            "first": query.page.after[0] if query.page and query.page.after else "",
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
