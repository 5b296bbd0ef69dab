"""Rows that joins prices with and that differ from the database, or are missing there: not captured, or rejected.

A snapshot has no deleted rows. So such a row is deleted once more for change capture: inserted as joins has it, which
changes nothing there, and deleted in the same transaction. A row that differs is published again as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from catalog.change import Change
from catalog.joined_versions import not_joined, versions
from catalog.store import change_of, read_exactly, table_of
from jobs.joins.unpropagated_deletions import missing_rows
from jobs.streams import CatalogTopic, Table
from metering.instants import EPOCH

Held = Mapping[str, Any]
Gone = Mapping[Table, frozenset[int]]
"""The newest versions of rows that joins has and the database has not: by table their lsns."""
_PUT_PLAN = "INSERT INTO catalog.plans VALUES (%(plan)s, %(plan)s) ON CONFLICT DO NOTHING RETURNING plan"
_PUT = {
    Table.PRICES: """
        INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price, terms)
        VALUES (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s, %(unit_price)s, %(terms)s::jsonb)
        ON CONFLICT DO NOTHING RETURNING plan
    """,
    Table.ACCOUNTS: """
        INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from, tags, parent)
        VALUES (%(account)s, coalesce(%(name)s, %(account)s), %(plan)s, %(currency)s, coalesce(%(timezone)s, 'UTC'),
                %(effective_from)s, coalesce(%(tags)s::jsonb, '{}'),
                (SELECT account FROM catalog.accounts WHERE account = %(parent)s))
        ON CONFLICT DO NOTHING RETURNING account
    """,
}
# Both were taken when that was allowed, and are there for no longer than this transaction.
_ANY_ZONE = "SELECT set_config('weir.known_zones', concat(' UTC ', %(timezone)s::text, ' '), true)"
_ANY_METER = "SELECT set_config('weir.takes_any_meter', 'yes', true)"
_DELETE = {
    Table.PRICES: """
        DELETE FROM catalog.prices WHERE (plan, model, meter, currency, effective_from)
            = (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s)
    """,
    Table.ACCOUNTS: "DELETE FROM catalog.accounts WHERE account = %(account)s",
}
_TOUCH = {
    CatalogTopic.PRICES: """
        UPDATE catalog.prices SET plan = plan WHERE (plan, model, meter, currency, effective_from)
            = (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s)
    """,
    CatalogTopic.ACCOUNTS: "UPDATE catalog.accounts SET plan = plan WHERE account = %(account)s",
}


def missing_deletions(tables: str, postgres_url: str) -> Gone:
    """What joins has and the database has not, for `delete_missing`. Raises `psycopg.Error` when the database
    refuses.
    """
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        return {table: frozenset(row["lsn"] for row in _missing(tables, table, database)) for table in _PUT}


def delete_missing(tables: str, postgres_url: str, before: Gone) -> int:
    """Delete what joins has but neither the database nor `before` has, accounts before prices; returns how many rows.

    joins must have all that was committed until then. A later deletion is still on its way: published twice, it would
    end now, and not at its own moment. Raises `psycopg.Error` when the database refuses.
    """
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        database.execute("SET LOCAL TimeZone = 'UTC'")
        found = {table: _missing(tables, table, database) for table in (Table.ACCOUNTS, Table.PRICES)}
        rows = [(table, row) for table, rows in found.items() for row in rows if row["lsn"] in before[table]]
        return sum(_deleted(database, table, row) for table, row in rows)


def publish_differences(tables: str, postgres_url: str) -> int:
    """Have each account and price published again that joins has otherwise, or not at all; how many rows.

    An update of nothing: it puts the row into the log of changes, and changes neither the row nor its author.
    Raises `psycopg.Error` when the database refuses.
    """
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        read_exactly(database)
        differing = not_joined(tables, _rows(database))
        for row in differing:
            database.execute(_TOUCH[row.topic], row.key)
    return len(differing)


def outdated(tables: str, postgres_url: str, until: datetime) -> int:
    """How many accounts and prices, last changed before `until`, joins has otherwise than the database, or not at all.

    Raises `psycopg.Error` when the database refuses.
    """
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        read_exactly(database)
        rows = [row for row in _rows(database) if _changed_at(row) < until]
    return len(not_joined(tables, rows))


def _changed_at(row: Change) -> datetime:
    """When the row was changed; long ago for one without a time, changed by an earlier release."""
    return datetime.fromisoformat(row.after["changed_at"]) if row.after["changed_at"] else EPOCH


def _rows(database: psycopg.Connection[dict[str, Any]]) -> list[Change]:
    """All prices and accounts, as rows that were so already."""
    return [
        change_of(table, {**row, "op": "r"}, row["read_at"])
        for table in (table_of(CatalogTopic.PRICES), table_of(CatalogTopic.ACCOUNTS))
        for row in database.execute(f"SELECT *, now() AS read_at FROM catalog.{table.name}".encode())
    ]


def _missing(tables: str, table: Table, database: psycopg.Connection[dict[str, Any]]) -> Sequence[Held]:
    joined = versions(tables, table)
    return [] if joined is None else missing_rows(joined, table, database).to_dicts()


def _deleted(database: psycopg.Connection[dict[str, Any]], table: Table, row: Held) -> bool:
    """Whether it was not there, and so was put there and deleted."""
    with database.transaction():
        plan = database.execute(_PUT_PLAN, row).fetchone()
        database.execute(_ANY_METER)
        if table is Table.ACCOUNTS:
            database.execute(_ANY_ZONE, row)
        put = database.execute(_PUT[table], row).fetchone()
        if put is not None:
            database.execute(_DELETE[table], row)
        if plan is not None:
            database.execute("DELETE FROM catalog.plans WHERE plan = %(plan)s", row)
    return put is not None
