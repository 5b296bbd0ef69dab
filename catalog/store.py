"""The catalog in Postgres: a file's rows are stored in one transaction, and captured like any change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb, set_json_loads

from catalog.change import Change, Row
from catalog.closed_months import refuse_closed
from catalog.file import CatalogFile
from catalog.limits import store_limits
from catalog.pools import store_pools
from catalog.price_jumps import refuse_jumps
from deployment.attribution import attribute
from deployment.errors import CannotRun
from jobs.queries.limits import dimensions_of_limits
from jobs.runtime.unreachable import database_sentence
from jobs.streams import AUTHOR, CatalogTopic
from metering.instants import rfc3339
from metering.plan_terms import terms_of
from metering.price_attributes import restored
from metering.tags import tags_text


@dataclass(frozen=True)
class CatalogTable:
    """A table of the schema `catalog`."""

    topic: CatalogTopic
    name: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    """Type by column, the key's first."""

    changed: str
    """When a row `t` differs from the file's row `f`."""

    filled: Mapping[str, str] = field(default_factory=dict)
    """Per column, the value where the file's row `r` may leave it out; `t` is the existing row, if any."""

    @property
    def returned(self) -> tuple[str, ...]:
        """The columns that a change publishes: the row's own, and its author by the database."""
        return (*self.columns, *AUTHOR)

    @property
    def statement(self) -> str:
        """Upsert the rows of a JSON array, sorted by key; gives each row as it is then, and its `op`."""
        names, key, returned = ", ".join(self.columns), ", ".join(self.key), ", ".join(self.returned)
        fields = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        values = [name for name in self.columns if name not in self.key]
        selected = ", ".join(f"{self.filled.get(name, f'r.{name}')} AS {name}" for name in self.columns)
        return f"""
            WITH file AS (
                SELECT {selected}
                FROM jsonb_to_recordset(%s) AS r ({fields}) LEFT JOIN catalog.{self.name} AS t USING ({key})
            ), before AS (
                SELECT {key}, ({self.changed}) AS differs FROM file AS f JOIN catalog.{self.name} AS t USING ({key})
            ), stored AS (
                INSERT INTO catalog.{self.name} AS t ({names})
                SELECT {names} FROM file AS f
                WHERE NOT EXISTS (
                    SELECT FROM before AS b WHERE ({_of("b", self.key)}) = ({_of("f", self.key)}) AND NOT differs
                )
                ORDER BY {key}
                ON CONFLICT ({key}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in values)}
                RETURNING {returned}, CASE WHEN xmax = 0 THEN 'c' ELSE 'u' END AS op
            )
            SELECT * FROM stored
            UNION ALL
            SELECT {_of("t", self.returned)}, 'r'
            FROM catalog.{self.name} AS t JOIN before AS b USING ({key}) WHERE NOT differs
        """

    @property
    def locked(self) -> str:
        """Wait for other changes of the rows in a JSON array: `statement` keeps columns that the file leaves out.

        Otherwise it would restore the values from before those changes.
        """
        key = ", ".join(self.key)
        fields = ", ".join(f"{name} {self.columns[name]}" for name in self.key)
        return f"""
            SELECT FROM catalog.{self.name} AS t JOIN jsonb_to_recordset(%s) AS given ({fields}) USING ({key})
            ORDER BY {key} FOR NO KEY UPDATE OF t
        """

    @property
    def select_by_keys(self) -> str:
        """The rows of the keys in a JSON array, and when they were read."""
        key = ", ".join(self.key)
        fields = ", ".join(f"{name} {self.columns[name]}" for name in self.key)
        return f"""
            SELECT DISTINCT {_of("t", self.returned)}, now() AS read_at
            FROM catalog.{self.name} AS t JOIN jsonb_to_recordset(%s) AS given ({fields}) USING ({key})
        """


def _of(table: str, names: Iterable[str]) -> str:
    return ", ".join(f"{table}.{name}" for name in names)


TABLES = (
    CatalogTable(CatalogTopic.PLANS, "plans", ("plan",), {"plan": "text", "name": "text"}, "t.name <> f.name"),
    CatalogTable(
        CatalogTopic.PRICES,
        "prices",
        ("plan", "model", "meter", "currency", "effective_from"),
        {
            "plan": "text",
            "model": "text",
            "meter": "text",
            "currency": "text",
            "effective_from": "timestamptz",
            "unit_price": "numeric(20, 12)",
            "terms": "jsonb",
        },
        "(t.unit_price, t.terms) IS DISTINCT FROM (f.unit_price, f.terms)",
    ),
    CatalogTable(
        CatalogTopic.ACCOUNTS,
        "accounts",
        ("account",),
        {
            "account": "text",
            "name": "text",
            "plan": "text",
            "currency": "text",
            "timezone": "text",
            "effective_from": "timestamptz",
            "tags": "jsonb",
            "parent": "text",
        },
        # A file without `effective_from` means "from now on", which is no change where everything else is equal. A row
        # that is only announced is not in effect yet.
        "(t.name, t.plan, t.currency, t.timezone, t.tags) <> (f.name, f.plan, f.currency, f.timezone, f.tags)"
        " OR t.parent IS DISTINCT FROM f.parent"
        " OR f.effective_from IS NOT NULL AND f.effective_from IS DISTINCT FROM t.effective_from"
        " OR f.effective_from IS NULL AND coalesce(t.effective_from > now(), false)",
        {"tags": "coalesce(r.tags, t.tags, '{}')", "parent": "nullif(coalesce(r.parent, t.parent), '')"},
    ),
)
"""In the order in which they are stored, and so captured: an account's usage has a price as soon as it has a contract.
(Deletions must go the other way round, accounts first.)"""


def table_of(topic: CatalogTopic) -> CatalogTable:
    """The table that a topic is about."""
    return next(table for table in TABLES if table.topic is topic)


_ATTRIBUTES = "SELECT jsonb_array_elements(config -> 'price_attributes') AS listed FROM jobs WHERE job = 'joins'"


@dataclass(frozen=True)
class Stored:
    """What became of the rows of a file."""

    changes: list[Change]
    """Of those that are captured."""
    limits: Counter[str]
    """How many limits were created (c), changed (u) and left as they were (r)."""
    pools: Counter[str]
    """The same of members of pools."""


def store(
    postgres_url: str,
    catalog: CatalogFile,
    changed_by: str | None = None,
    *,
    backdates: bool = False,
    confirms: bool = False,
) -> list[Change]:
    """The changes of `store_file`."""
    return store_file(postgres_url, catalog, changed_by, backdates=backdates, confirms=confirms).changes


def store_file(
    postgres_url: str,
    catalog: CatalogFile,
    changed_by: str | None = None,
    *,
    note: str = "",
    backdates: bool = False,
    confirms: bool = False,
) -> Stored:
    """Upsert the file in one transaction; gives every row of the file, in the order of TABLES.

    Rows that change keep `changed_by` (None: the database's role); `note` says why in the activity log. Raises
    CannotRun for an account, price or limit of an unknown plan, for a parent, a limit or a pool of what is no
    account, for a price or limit of a meter that is not declared, for a limit that rolls or is of a dimension of
    one that bills whole periods, for a limit of an unknown dimension, for a price with a condition on what is no
    price attribute, and when the database refuses; PricesJump, unless `confirms`, where a price is 100 times above
    or below another; and, unless `backdates`, ClosedMonthsTouched where ended months would be billed again.
    """
    try:
        with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
            database.execute("SET LOCAL TimeZone = 'UTC'")
            attribute(database, changed_by or "", note)
            database.execute("SELECT set_config('weir.confirms_prices', %s, true)", ["yes" if confirms else ""])
            known = {row["plan"] for row in database.execute("SELECT plan FROM catalog.plans")}
            if unknown := catalog.unknown_plans(known):
                raise CannotRun("\n".join(unknown))
            meters = database.execute("SELECT meter, period FROM meters WHERE is_declared").fetchall()
            if undeclared := catalog.undeclared_meters({row["meter"] for row in meters}):
                raise CannotRun("\n".join(undeclared))
            whole = {row["meter"] for row in meters if row["period"] is not None}
            refused = catalog.rolling_limits_of_whole_periods(whole)
            if refused := refused + catalog.limits_of_dimensions_of_whole_periods(whole):
                raise CannotRun("\n".join(refused))
            if unknown := catalog.unknown_dimensions(dimensions_of_limits(database)):
                raise CannotRun("\n".join(unknown))
            attributes = [row["listed"] for row in database.execute(_ATTRIBUTES)]
            if unknown := catalog.unknown_attributes(restored(attributes)):
                raise CannotRun("\n".join(unknown))
            names = [*(row.parent for row in catalog.accounts), *(row.account for row in catalog.limits)]
            names += [name for pool in catalog.pools for name in (pool.parent, *pool.accounts)]
            named = database.execute("SELECT account FROM catalog.accounts WHERE account = ANY (%s)", [names])
            if orphans := catalog.unknown_parents({row["account"] for row in named}):
                raise CannotRun("\n".join(orphans))
            found = []
            for table in TABLES:
                rows = [row.model_dump(mode="json") for row in catalog.rows(table.name)]
                if table.filled:
                    database.execute(table.locked, [Jsonb(rows)])
                found += [(table, row) for row in database.execute(table.statement, [Jsonb(rows)])]
            limits, pools = store_limits(database, catalog), store_pools(database, catalog, backdates=backdates)
            committed_at = database.execute("SELECT clock_timestamp() AS now").fetchone()
            assert committed_at is not None
            changes = [change_of(table, row, committed_at["now"]) for table, row in found]
            refuse_jumps(database, catalog)
            if not backdates:
                refuse_closed(postgres_url, database, changes)
        return Stored(changes, limits, pools)
    except psycopg.Error as problem:
        if (message := database_sentence(problem, postgres_url)) is not None:
            raise CannotRun(message) from None
        raise CannotRun(f"The database refused the catalog: {str(problem).splitlines()[0]}") from problem


def stored(postgres_url: str, changes: Iterable[Change]) -> list[Change]:
    """These rows in the database now, as unchanged rows; nothing for a missing one."""
    keys: dict[CatalogTopic, list[Row]] = {}
    for change in changes:
        keys.setdefault(change.topic, []).append(change.key)
    found = []
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        read_exactly(database)
        for table in (table for table in TABLES if table.topic in keys):
            rows = database.execute(table.select_by_keys, [Jsonb(keys[table.topic])]).fetchall()
            found += [change_of(table, {**row, "op": "r"}, row["read_at"]) for row in rows]
    return found


def read_exactly(database: psycopg.Connection[Any]) -> None:
    """Have rows for `change_of` in this transaction: instants in UTC, and numbers in JSON, which SQL may write in
    `terms`, as Decimal.
    """
    set_json_loads(partial(json.loads, parse_float=Decimal), database)
    database.execute("SET LOCAL TimeZone = 'UTC'")


def change_of(table: CatalogTable, row: Row, committed_at: datetime) -> Change:
    """The change that led to this row (its published columns, and `op`); for a deletion the earlier row."""
    after = {name: _text(name, row[name]) for name in table.returned}
    return Change(table.topic, {name: after[name] for name in table.key}, after, row["op"], committed_at)


def _text(name: str, value: Any) -> str | None:
    """As Debezium writes it: decimals and instants with a zone are texts."""
    match value:
        case None | str():
            return value
        case datetime():
            return rfc3339(value)
        case dict() if name == "terms":
            return terms_of(value).text
        case dict():
            return tags_text(value) or "{}"
    return f"{value:f}"
