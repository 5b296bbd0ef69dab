"""Rows of the catalog are deleted as of a moment and by an author; change capture reports both with the row.

A price in force ends at that moment, and an account has no plan from then on; a price that had not begun never applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from catalog.change import Change
from catalog.closed_months import refuse_closed
from catalog.store import change_of, read_exactly, table_of
from deployment.attribution import attribute
from deployment.errors import CannotRun
from jobs.runtime.unreachable import database_sentence
from jobs.streams import CatalogTopic
from metering.instants import rfc3339

MAX_NAMED = 5
_MARK = {
    CatalogTopic.PRICES: """
        UPDATE catalog.prices SET deleted_at = coalesce(%(at)s, now())
        WHERE (plan, model, meter, currency, effective_from)
            = (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s)
        RETURNING *, deleted_at > now() AS is_to_come
    """,
    # `effective_from` stays: else the account would begin once more, just before it ends.
    CatalogTopic.ACCOUNTS: """
        UPDATE catalog.accounts
        SET deleted_at = coalesce(%(at)s, now()), effective_from = coalesce(effective_from, changed_at)
        WHERE account = %(account)s
        RETURNING *, deleted_at > now() AS is_to_come
    """,
}
_DELETED = {
    CatalogTopic.PRICES: """
        DELETE FROM catalog.prices WHERE (plan, model, meter, currency, effective_from)
            = (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s)
    """,
    CatalogTopic.ACCOUNTS: "DELETE FROM catalog.accounts WHERE account = %(account)s",
}
_OTHERS = """
    SELECT effective_from FROM catalog.prices
    WHERE (plan, model, meter, currency) = (%(plan)s, %(model)s, %(meter)s, %(currency)s) ORDER BY 1
"""
_USES_PLAN = """
    SELECT array(SELECT account FROM catalog.accounts WHERE plan = %(plan)s ORDER BY account) AS accounts,
           (SELECT count(*) FROM catalog.prices WHERE plan = %(plan)s) AS prices
"""
_BELOW = "SELECT account FROM catalog.accounts WHERE parent = %(account)s ORDER BY account"
Key = Mapping[str, Any]


@dataclass(frozen=True)
class Deleted:
    """A deleted price or account, and when it ends."""

    change: Change
    ends_at: datetime
    is_to_come: bool

    @property
    def begins_at(self) -> datetime | None:
        """Since when it was so."""
        begins = self.change.after["effective_from"]
        return None if begins is None else datetime.fromisoformat(begins)


def delete_row(
    postgres_url: str,
    topic: CatalogTopic,
    key: Key,
    at: datetime | None,
    by: str,
    *,
    note: str = "",
    backdates: bool = False,
) -> Deleted:
    """Delete the price or account of a key, as of `at` or now, in the name of `by`; `note` says why.

    Raises CannotRun if there is none, for an account that is a parent, and when the database refuses; and, unless
    `backdates`, ClosedMonthsTouched where ended months would be billed again.
    """
    table = table_of(topic)
    with _confirmed(postgres_url) as database:
        if topic is CatalogTopic.ACCOUNTS and (below := database.execute(_BELOW, key).fetchall()):
            raise CannotRun(_has_descendants(key["account"], [row["account"] for row in below]))
        attribute(database, by, note)
        row = database.execute(_MARK[topic], {**key, "at": at}).fetchone()
        if row is None:
            raise CannotRun(_missing_row(database, topic, key))
        database.execute(_DELETED[topic], key)
        ends_at = row["deleted_at"]
        change = change_of(table, {**row, "op": "d"}, ends_at)
        if not backdates:
            refuse_closed(postgres_url, database, [change], ends_at)
    return Deleted(change, ends_at, row["is_to_come"])


def delete_plan(postgres_url: str, plan: str, by: str, note: str = "") -> None:
    """Delete a plan without accounts and prices, in the name of `by`; `note` says why.

    Raises CannotRun otherwise, or when the database refuses.
    """
    with _confirmed(postgres_url) as database:
        used = database.execute(_USES_PLAN, {"plan": plan}).fetchone()
        assert used is not None
        if used["accounts"] or used["prices"]:
            raise CannotRun(_used(plan, used["accounts"], used["prices"]))
        attribute(database, by, note)
        if not database.execute("DELETE FROM catalog.plans WHERE plan = %s", [plan]).rowcount:
            raise CannotRun(f"The catalog has no plan {plan!r}.")


@contextmanager
def _confirmed(postgres_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A transaction on the catalog. Raises CannotRun when the database refuses it."""
    try:
        with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
            read_exactly(database)
            yield database
    except psycopg.Error as problem:
        if (message := database_sentence(problem, postgres_url)) is not None:
            raise CannotRun(message) from None
        raise CannotRun(f"The database refused the deletion: {str(problem).splitlines()[0]}") from problem


def _missing_row(database: psycopg.Connection[dict[str, Any]], topic: CatalogTopic, key: Key) -> str:
    if topic is CatalogTopic.ACCOUNTS:
        return f"The catalog has no account {key['account']!r}."
    others = [rfc3339(row["effective_from"]) for row in database.execute(_OTHERS, key)]
    named = f"those that there are begin at {', '.join(others)}" if others else "there is none at all"
    since = rfc3339(key["effective_from"])
    return f"The catalog has no such price from {since} on; of that plan, model, meter and currency {named}."


def _named(accounts: Sequence[str]) -> str:
    return ", ".join([*accounts[:MAX_NAMED], *(["…"] if len(accounts) > MAX_NAMED else [])])


def _has_descendants(account: str, below: Sequence[str]) -> str:
    return (
        f"Account {account!r} is the parent of {len(below)} others ({_named(below)}): give them another first, or none."
    )


def _used(plan: str, accounts: Sequence[str], prices: int) -> str:
    by = [f"{len(accounts)} accounts have it ({_named(accounts)})"] if accounts else []
    by += [f"{prices} prices are of it"] if prices else []
    return (
        f"Plan {plan!r} is still used: {' and '.join(by)}. Give the accounts another plan, or delete them, and delete "
        "its prices first."
    )
