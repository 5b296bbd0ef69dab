"""Whether an older version of Weir may run on this schema: who migrates leaves the answer in the database, a function.

An older version cannot know what a migration changes that it does not have. So it asks, by its own newest migration. A
migration with `is_expansion = True` only adds: what the version before writes and reads is there as it was, and this
one makes do with rows that the version before writes meanwhile. (docs/decisions/0179)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from alembic.script import ScriptDirectory
from psycopg import sql

from jobs.runtime.postgres.relations import VERSION_TABLE

if TYPE_CHECKING:
    from jobs.runtime.postgres.downgrade import Use

FUNCTION = "refusal_of_release"
UNDECLARED = "nothing in it says that an older one can"
CHANGED = "a migration since then changes what it uses"

_CREATE = """
CREATE FUNCTION {name}(newest text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, {schema}, pg_temp AS {body}
"""
# A member of that role may migrate: the function would have its rights, and it could not be dropped.
_OWNER = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s::regclass"
_COMMENT = """
COMMENT ON FUNCTION {name}(text) IS
    'Why a version of Weir whose newest migration is this one cannot run on this schema. Null: it can.'
"""
# The owner's rights: what it looks for is not shown to each application's role, and it answers with sentences alone.
_BODY = """
DECLARE
    found text[] := '{{}}';
BEGIN
    IF NOT EXISTS (SELECT FROM {version} WHERE version_num = {head}) THEN
        -- Somebody has changed the schema since, and left this answer.
        RETURN {undeclared};
    END IF;
    IF newest <> ALL ({runs}) THEN
        RETURN {changed};
    END IF;
{uses}
    RETURN nullif(array_to_string(found, '; '), '');
END
"""
_USE = "    IF newest = ANY ({before}) AND ({found}) THEN found := found || {sentence}::text; END IF;"


def publish(
    connection: psycopg.Connection[Any], schema: str, scripts: ScriptDirectory, uses: Iterable[Use] = ()
) -> None:
    """Leave the answer of these migrations, which the database has all of, in place of an earlier one: the function
    belongs to the owner of the tables, even if another role migrates.

    `uses`: what a version before theirs would read wrongly, looked for whenever one asks.
    """
    withdraw(connection, schema)
    name = sql.Identifier(schema, FUNCTION)
    body = sql.Literal(_body(scripts, uses).as_string(connection))
    connection.execute(sql.SQL(_CREATE).format(name=name, schema=sql.Identifier(schema), body=body))
    connection.execute(sql.SQL(_COMMENT).format(name=name))
    ((owner,),) = connection.execute(_OWNER, [sql.Identifier(schema, VERSION_TABLE).as_string(connection)]).fetchall()
    connection.execute(sql.SQL("ALTER FUNCTION {}(text) OWNER TO {}").format(name, sql.Identifier(owner)))


def withdraw(connection: psycopg.Connection[Any], schema: str) -> None:
    """From now on no other version runs on this schema than its own."""
    connection.execute(sql.SQL("DROP FUNCTION IF EXISTS {}(text)").format(sql.Identifier(schema, FUNCTION)))


def refusal(connection: psycopg.Connection[Any], schema: str, newest: str) -> str | None:
    """Why a version whose newest migration is `newest` cannot run on the schema of a newer one; None: it can."""
    name = sql.Identifier(schema, FUNCTION)
    signature = name.as_string(connection) + "(text)"
    if connection.execute("SELECT to_regprocedure(%s) IS NULL", [signature]).fetchone() == (True,):
        return UNDECLARED
    row = connection.execute(sql.SQL("SELECT {}(%s)").format(name), [newest]).fetchone()
    return UNDECLARED if row is None else row[0]


def runs_on(scripts: ScriptDirectory) -> Iterator[tuple[str, frozenset[str]]]:
    """The newest migrations of the versions that run on this schema, newest first, each with those that follow it."""
    later: set[str] = set()
    for script in scripts.walk_revisions():
        yield script.revision, frozenset(later)
        if not getattr(script.module, "is_expansion", False):
            return
        later.add(script.revision)


def _body(scripts: ScriptDirectory, uses: Iterable[Use]) -> sql.Composable:
    runs = dict(runs_on(scripts))
    found = [
        sql.SQL(_USE).format(before=sql.Literal(before), found=sql.SQL(use.found), sentence=sql.Literal(use.sentence))
        for use in uses
        if (before := [newest for newest, later in runs.items() if use.revision in later])
    ]
    return sql.SQL(_BODY).format(
        version=sql.Identifier(VERSION_TABLE),
        head=sql.Literal(next(iter(runs))),
        undeclared=sql.Literal(UNDECLARED),
        runs=sql.Literal(list(runs)),
        changed=sql.Literal(CHANGED),
        uses=sql.SQL("\n").join(found),
    )
