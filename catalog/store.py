"""The catalog in Postgres: a file's rows are stored in one transaction, and what that changed is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from catalog import outbox as catalog_outbox
from catalog.change import Change, Row
from catalog.file import CatalogFile
from deployment.asking import asking_database
from deployment.errors import CannotRun
from jobs.streams import AUTHOR, CatalogTopic
from metering.instants import rfc3339

QUIET_SECONDS = 1.0
"""Who waits longer for another's catalog says so."""


@dataclass(frozen=True)
class CatalogTable:
    """A table of the schema `catalog`. What is stored when only `kept` columns differ from the file: nothing."""

    topic: CatalogTopic
    name: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    """Type by column, the key's first."""

    changed: str
    """When a row `t` differs from the file's row `f`."""

    @property
    def told(self) -> tuple[str, ...]:
        """What a change tells of a row: its columns, and who the database says changed it."""
        return (*self.columns, *AUTHOR)

    @property
    def statement(self) -> str:
        """Upsert the rows of a JSON array, sorted by key; gives each row as it is then, and its `op`."""
        names, key = ", ".join(self.columns), ", ".join(self.key)
        fields = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        values = [name for name in self.columns if name not in self.key]
        return f"""
            WITH file AS (
                SELECT * FROM jsonb_to_recordset(%s) AS r ({fields})
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
                RETURNING {", ".join(self.told)}, CASE WHEN xmax = 0 THEN 'c' ELSE 'u' END AS op
            )
            SELECT * FROM stored
            UNION ALL
            SELECT {_of("t", self.told)}, 'r'
            FROM catalog.{self.name} AS t JOIN before AS b USING ({key}) WHERE NOT differs
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
        },
        "t.unit_price <> f.unit_price",
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
        },
        # A file without `effective_from` says "from now on", which is no change where all else is so already. What was
        # only announced is not so yet.
        "(t.name, t.plan, t.currency, t.timezone) <> (f.name, f.plan, f.currency, f.timezone)"
        " OR f.effective_from IS NOT NULL AND f.effective_from IS DISTINCT FROM t.effective_from"
        " OR f.effective_from IS NULL AND coalesce(t.effective_from > now(), false)",
    ),
)
"""In the order in which they are stored and told: an account's usage has a price as soon as it has a contract. (Whoever
deletes must do it the other way round, accounts first.)"""


@contextmanager
def alone(postgres_url: str, limit_seconds: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Keep others from applying a catalog at the same time: changes are published in the order they were made.

    Waits for one who does, and says so. Raises CannotRun when the time is over, or the database does not answer.
    """
    with (
        asking_database(postgres_url),
        psycopg.connect(postgres_url, autocommit=True, connect_timeout=10) as database,
    ):
        quiet_seconds = min(QUIET_SECONDS, limit_seconds)
        if not _locked(database, quiet_seconds):
            tell(f"Waiting, {limit_seconds:g} s at most, for another `weir catalog` command that is at work here.")
            if not _locked(database, limit_seconds - quiet_seconds):
                raise CannotRun(
                    f"Another `weir catalog` command was at work on this database for {limit_seconds:g} s: nothing was "
                    "changed. Run the command again when that one has ended, or with a longer --timeout."
                )
        yield


def _locked(database: psycopg.Connection[Any], limit_seconds: float) -> bool:
    """Whether the lock is ours within the time."""
    # 0 would be: wait for ever.
    database.execute("SELECT set_config('lock_timeout', %s, false)", [f"{max(1, round(limit_seconds * 1_000))}ms"])
    try:
        database.execute("SELECT pg_advisory_lock(hashtext('weir catalog apply'))")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def store(
    postgres_url: str,
    catalog: CatalogFile,
    is_known: Callable[[Change], bool] = lambda _: True,
    changed_by: str | None = None,
) -> list[Change]:
    """Upsert the file in one transaction, and write to the outbox what must be told.

    Rows that change keep `changed_by` (None: the database's role). Gives every row of the file, in the order of TABLES.
    What was so already is told again where `is_known` denies that joins has it, with the instants that were told
    before. Raises CannotRun for an account or price of an unknown plan, for a price of a meter that is not declared,
    and when the database refuses.
    """
    try:
        with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
            database.execute("SET LOCAL TimeZone = 'UTC'")
            database.execute("SELECT set_config('weir.changed_by', %s, true)", [changed_by or ""])
            known = {row["plan"] for row in database.execute("SELECT plan FROM catalog.plans")}
            if unknown := catalog.unknown_plans(known):
                raise CannotRun("\n".join(unknown))
            declared = {row["meter"] for row in database.execute("SELECT meter FROM meters WHERE is_declared")}
            if undeclared := catalog.undeclared_meters(declared):
                raise CannotRun("\n".join(undeclared))
            found = []
            for table in TABLES:
                rows = [row.model_dump(mode="json") for row in getattr(catalog, table.name)]
                found += [(table, row) for row in database.execute(table.statement, [Jsonb(rows)])]
            committed_at = database.execute("SELECT clock_timestamp() AS now").fetchone()
            assert committed_at is not None
            changes = [change_of(table, row, committed_at["now"]) for table, row in found]
            with database.cursor() as cursor:
                catalog_outbox.add(cursor, _untold(cursor, changes, is_known))
        return changes
    except psycopg.Error as problem:
        raise CannotRun(f"The database refused the catalog: {str(problem).splitlines()[0]}") from problem


def _untold(
    cursor: catalog_outbox.Cursor, changes: Sequence[Change], is_known: Callable[[Change], bool]
) -> list[Change]:
    """What changed now, and what is so already but joins does not have.

    The latter as it was told before: an account without `effective_from` would begin anew with every telling.
    """
    missing = [change for change in changes if change.op != "r" or not is_known(change)]
    last = catalog_outbox.last_told(cursor, [change for change in missing if change.op == "r"])
    told = [last.get(catalog_outbox.identity(change)) for change in missing]
    return [
        before if before is not None and _says(before) == _says(change) else change
        for change, before in zip(missing, told, strict=True)
    ]


def _says(change: Change) -> Row:
    """Its row, whoever made it so: what was told by a release that did not keep that is told already."""
    return {name: value for name, value in change.after.items() if name not in AUTHOR}


def change_of(table: CatalogTable, row: Row, committed_at: datetime) -> Change:
    """The change that left this row (what the table tells, and `op`); of a deletion the row that there was."""
    after = {name: _text(row[name]) for name in table.told}
    return Change(table.topic, {name: after[name] for name in table.key}, after, row["op"], committed_at)


def _text(value: Any) -> str | None:
    """As Debezium writes it: decimals and instants with a zone are texts."""
    match value:
        case None | str():
            return value
        case datetime():
            return rfc3339(value)
    return f"{value:f}"
