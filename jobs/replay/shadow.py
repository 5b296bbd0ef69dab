"""A schema of Postgres with empty copies of the tables that billing folds into: nothing in it is live."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.address import RESERVED, is_fit_for_schema

TABLES = (
    "usage_windows",
    "usage_days",
    "usage_day_dimensions",
    "usage_members",
    "late_members",
    "stragglers",
    "corrections",
    "taken_back_on_time",
)
MARK = "weir replay"
"""The comment of a schema that a replay has made, so that no other is ever dropped."""

_LIKE = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING IDENTITY"
_KEYS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype IN ('p', 'u')
"""
# What had closed is recorded in the rows themselves.
_NOTHING_SHOWN = """
CREATE VIEW closed_usage AS SELECT NULL::timestamptz AS closed_until WHERE false;
CREATE VIEW closed_meters AS SELECT NULL::text AS meter, NULL::timestamptz AS closed_until WHERE false;
CREATE SEQUENCE settled_stragglers;
"""


def refuse_unfit_name(schema: str) -> None:
    """Raises ValueError for what is no name of a schema that could be made."""
    if not is_fit_for_schema(schema):
        raise ValueError(
            f"{schema!r} cannot be the schema of a replay: use 1 to 63 lowercase letters, digits and _, and none of "
            f"{', '.join(RESERVED)} or pg_…"
        )


def make(cursor: psycopg.Cursor[Any], schema: str, *, replaces: bool) -> str:
    """Make it and let the transaction see nothing else; gives the name of the live schema.

    Raises Refused for an existing schema of this name that is not to be replaced, or that no replay has made.
    """
    live = cursor.execute("SELECT current_schema()").fetchone()
    assert live is not None
    found = cursor.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [schema]
    ).fetchone()
    name = sql.Identifier(schema)
    if found is not None:
        if schema == live[0] or found[0] != MARK:
            raise Refused(f"the schema {schema} was not made by a replay; name another one with --into")
        if not replaces:
            raise Refused(f"the schema {schema} is there already; name another one, or give --replace")
        cursor.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))
    cursor.execute(sql.SQL("CREATE SCHEMA {}; COMMENT ON SCHEMA {} IS {}").format(name, name, sql.Literal(MARK)))
    for table in TABLES:
        stored, made = sql.Identifier(live[0], table), sql.Identifier(schema, table)
        cursor.execute(sql.SQL("CREATE TABLE {} (LIKE {} {})").format(made, stored, sql.SQL(_LIKE)))
        for key, definition in cursor.execute(_KEYS, [stored.as_string(cursor)]).fetchall():
            alter = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
            cursor.execute(alter.format(made, sql.Identifier(key), sql.SQL(definition)))
    cursor.execute(sql.SQL("SET LOCAL search_path = {}").format(name))
    cursor.execute(_NOTHING_SHOWN)
    return str(live[0])
