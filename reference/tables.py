"""tables.md: every table, column by column: Delta's by their schemas, those of Postgres as the migrations make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import yaml

import jobs
from jobs.runtime.postgres.relations import VERSION_TABLE
from jobs.runtime.postgres.schema import MIGRATIONS
from jobs.streams import SCHEMAS
from reference.markdown import cell, code, page, table

DELTA = Path(jobs.__path__[0]) / "delta_tables.yaml"
POSTGRES = MIGRATIONS.with_name("tables.yaml")
_ARROW = {"string": "text", "int64": "bigint", "int32": "integer", "double": "double", "bool": "boolean"}
_ARROW |= {"binary": "bytes", "date32[day]": "date", "timestamp[us, tz=UTC]": "instant"}
_INTRODUCTION = """
Delta tables are the record: what billing, sessionization and analytics have in Postgres can be
[made again](../how-to/recover-the-database.md) from them. [What cannot](../how-to/restore.md) needs a backup: the
catalog, API keys, invoices, the activity log and webhooks. Columns may be added; none is renamed. Instants are in UTC.
"""
_POSTGRES = """
Weir's own tables are in the schema `weir`, what people edit in `catalog`. `python -m jobs migrate` makes them. The role
of the dashboard sees the rows of the accounts that it is for, and no others.
"""
_COLUMNS = """
SELECT nspname, relname, relkind = 'v', attname, format_type(atttypid, atttypmod), attnotnull,
       obj_description(pg_class.oid, 'pg_class'), col_description(pg_class.oid, attnum),
       attnum = ANY ((SELECT conkey FROM pg_constraint WHERE conrelid = pg_class.oid AND contype IN ('p', 'u')
                      ORDER BY contype, conname LIMIT 1)::int2[])
FROM pg_class
JOIN pg_namespace ON relnamespace = pg_namespace.oid
JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
WHERE nspname = ANY (%s) AND relkind IN ('r', 'v') AND relname <> %s
ORDER BY nspname = 'catalog', relname, attnum
"""


@dataclass(frozen=True)
class Column:
    """A column of a table or view in Postgres, with what the database says of both."""

    schema: str
    table: str
    is_view: bool
    name: str
    type: str
    is_required: bool
    table_comment: str | None
    comment: str | None
    is_key: bool | None

    @property
    def full_name(self) -> str:
        """Its table, as Weir's own sessions name it."""
        return self.table if self.schema == "weir" else f"{self.schema}.{self.table}"


def stored_columns(url: str) -> list[Column]:
    """The columns of Weir's tables in the migrated database at `url`."""
    with psycopg.connect(url) as connection:
        return [Column(*row) for row in connection.execute(_COLUMNS, [["weir", "catalog"], VERSION_TABLE]).fetchall()]


def tables_page(columns: Sequence[Column]) -> str:
    """The page."""
    delta, postgres = described(DELTA), described(POSTGRES)
    sections = "".join(_delta(name.value, schema, delta[name.value]) for name, schema in SCHEMAS.items())
    return page(
        "Tables",
        "the schemas of Delta and Postgres, `jobs/delta_tables.yaml` and `jobs/runtime/postgres/tables.yaml`",
        _INTRODUCTION,
        f"## Delta tables\n\n{sections}## Postgres\n\n{_POSTGRES.strip()}\n\n{''.join(_postgres(columns, postgres))}",
    )


def described(path: Path) -> dict[str, Any]:
    """What the file says of each table: `meaning`, `key` and the meaning of each of its `columns`."""
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def _delta(name: str, schema: pa.Schema, notes: Mapping[str, Any]) -> str:
    rows = [
        (
            code(field.name),
            arrow_type(field.type),
            "yes" if field.nullable else "",
            cell(notes["columns"][field.name]),
        )
        for field in schema
    ]
    listed = table(("column", "type", "may be null", "meaning"), rows)
    return f"### {code(name)}\n\n{cell(notes['meaning'])} Key: {cell(notes['key'])}.\n\n{listed}\n"


def _postgres(columns: Sequence[Column], notes: Mapping[str, Any]) -> Iterator[str]:
    for full_name, found in groupby(columns, key=lambda column: column.full_name):
        of_table = list(found)
        ours = notes.get(full_name, {})
        kind = " (view)" if of_table[0].is_view else ""
        keys = [code(column.name) for column in of_table if column.is_key]
        key = f" Key: {', '.join(keys)}." if keys else ""
        rows = [
            (
                code(column.name),
                cell(column.type.replace("timestamp with time zone", "timestamptz")),
                "" if column.is_required or column.is_view else "yes",
                cell(meaning_of(column, notes)),
            )
            for column in of_table
        ]
        meaning = cell(ours.get("meaning") or of_table[0].table_comment or "")
        listed = table(("column", "type", "may be null", "meaning"), rows)
        yield f"### {code(full_name)}{kind}\n\n{meaning}{key}\n\n{listed}\n"


def meaning_of(column: Column, notes: Mapping[str, Any]) -> str:
    """What the file says of the table's column, else the database's own comment, else what it means anywhere."""
    name = column.name
    own = notes.get(column.full_name, {}).get("columns", {})
    return str(own.get(name) or column.comment or notes["common"]["columns"].get(name, ""))


def arrow_type(kind: pa.DataType) -> str:
    """A type of Arrow in the words of SQL."""
    if pa.types.is_list(kind):
        return f"list of {arrow_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "(" + ", ".join(f"{field.name} {arrow_type(field.type)}" for field in kind) + ")"
    return _ARROW.get(str(kind), str(kind).replace("decimal128", "decimal"))
