"""Rows that joins prices with and the database has no more: deleted while nobody captured it, in no snapshot either.

They are deleted once more, for the log of changes: put there as joins has them, which is no change to it, and deleted
in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.joins.untold import missing
from jobs.runtime.delta.table import open_table
from jobs.streams import Table

Held = Mapping[str, Any]
_PUT_PLAN = "INSERT INTO catalog.plans VALUES (%(plan)s, %(plan)s) ON CONFLICT DO NOTHING RETURNING plan"
_PUT = {
    Table.PRICES: """
        INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)
        VALUES (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s, %(unit_price)s)
        ON CONFLICT DO NOTHING RETURNING plan
    """,
    Table.ACCOUNTS: """
        INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from)
        VALUES (%(account)s, coalesce(%(name)s, %(account)s), %(plan)s, %(currency)s, coalesce(%(timezone)s, 'UTC'),
                %(effective_from)s)
        ON CONFLICT DO NOTHING RETURNING account
    """,
}
_DELETE = {
    Table.PRICES: """
        DELETE FROM catalog.prices WHERE (plan, model, meter, currency, effective_from)
            = (%(plan)s, %(model)s, %(meter)s, %(currency)s, %(effective_from)s)
    """,
    Table.ACCOUNTS: "DELETE FROM catalog.accounts WHERE account = %(account)s",
}


def delete_again(tables: str, postgres_url: str) -> int:
    """Delete what joins has and the database has not, accounts before prices; how many rows.

    joins must have all that was committed before: what it is yet to be told of would be told twice, which is harmless.
    Raises `psycopg.Error` when the database refuses.
    """
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        database.execute("SET LOCAL TimeZone = 'UTC'")
        gone = {table: _gone(tables, table, database) for table in (Table.ACCOUNTS, Table.PRICES)}
        rows = [(table, row) for table, found in gone.items() for row in found]
        return sum(_deleted(database, table, row) for table, row in rows)


def _gone(tables: str, table: Table, database: psycopg.Connection[dict[str, Any]]) -> Sequence[Held]:
    held = open_table(tables, table)
    if held is None:
        return []
    # Not with Arrow's own threads, as in `known.versions`.
    return missing(held.to_pyarrow_dataset().to_table(use_threads=False), table, database).to_dicts()


def _deleted(database: psycopg.Connection[dict[str, Any]], table: Table, row: Held) -> bool:
    """Whether it was not there, and so was put there and deleted."""
    with database.transaction():
        plan = database.execute(_PUT_PLAN, row).fetchone()
        put = database.execute(_PUT[table], row).fetchone()
        if put is not None:
            database.execute(_DELETE[table], row)
        if plan is not None:
            database.execute("DELETE FROM catalog.plans WHERE plan = %(plan)s", row)
    return put is not None
