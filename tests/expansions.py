"""What a version of Weir would miss on a later schema, as far as the database's catalog shows it.

A migration with `is_expansion = True` says that there is nothing. What a trigger does differently is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

_OF = "relnamespace IN (current_schema()::regnamespace, 'catalog'::regnamespace)"
_RELATIONS = f"""
SELECT oid::regclass::text, relkind::text, relrowsecurity FROM pg_class WHERE {_OF} AND relkind IN ('r', 'p', 'v', 'S')
"""
_COLUMNS = f"""
SELECT attrelid::regclass::text, attname::text, format_type(atttypid, atttypmod), attnotnull,
       atthasdef OR attidentity <> ''
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE {_OF} AND relkind IN ('r', 'p', 'v') AND attnum > 0 AND NOT attisdropped
"""
_UNIQUE = f"""
SELECT indrelid::regclass::text, array_agg(
           pg_get_indexdef(indexrelid, place::int, true) ORDER BY pg_get_indexdef(indexrelid, place::int, true)
       )::text || coalesce(' WHERE ' || min(pg_get_expr(indpred, indrelid)), '')
FROM pg_index JOIN pg_class ON pg_class.oid = indrelid CROSS JOIN generate_series(1, indnkeyatts) AS place
WHERE {_OF} AND indisunique GROUP BY indexrelid, indrelid
"""
_CONSTRAINTS = f"""
SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(pg_constraint.oid),
       ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey))
FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE {_OF} AND contype IN ('c', 'f', 'x')
"""
_TRIGGERS = f"""
SELECT tgrelid::regclass::text, tgname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE {_OF} AND NOT tgisinternal
"""
_FUNCTIONS = """
SELECT oid::regprocedure::text, pg_get_function_result(oid) FROM pg_proc
WHERE pronamespace IN (current_schema()::regnamespace, 'catalog'::regnamespace) AND proname <> 'refusal_of_release'
"""


@dataclass(frozen=True)
class Schema:
    """Names with what a program relies on."""

    relations: dict[str, tuple[str, bool]]
    columns: dict[tuple[str, str], tuple[str, bool, bool]]
    unique: frozenset[tuple[str, str]]
    constraints: dict[tuple[str, str], tuple[str, frozenset[str]]]
    triggers: frozenset[tuple[str, str]]
    functions: dict[str, str]


def schema_of(connection: psycopg.Connection[Any]) -> Schema:
    """As it is now in this session."""

    def rows(query: str) -> list[tuple[Any, ...]]:
        return connection.execute(query.encode()).fetchall()

    return Schema(
        relations={name: (kind, guarded) for name, kind, guarded in rows(_RELATIONS)},
        columns={(table, name): (kind, must, has) for table, name, kind, must, has in rows(_COLUMNS)},
        unique=frozenset((table, key) for table, key in rows(_UNIQUE)),
        constraints={(table, name): (text, frozenset(of)) for table, name, text, of in rows(_CONSTRAINTS)},
        triggers=frozenset((table, name) for table, name in rows(_TRIGGERS)),
        functions={name: str(result) for name, result in rows(_FUNCTIONS)},
    )


def missed(
    before: Schema, after: Schema, widened: frozenset[str] = frozenset(), guarded: frozenset[str] = frozenset()
) -> Iterator[str]:
    """What a version of the schema `before` would miss on the one `after`.

    `widened`: checks that only take more. `guarded`: tables of whose rows it needs none that it does not see now.
    """
    yield from _relations(before, after, guarded)
    yield from _columns(before, after)
    yield from _refusals(before, after, widened)
    for table, name in before.triggers - after.triggers:
        yield f"{table} has no trigger {name}"
    for name, result in before.functions.items():
        if after.functions.get(name) != result:
            yield f"{name} is gone, or gives no {result}"


def _relations(before: Schema, after: Schema, guarded: frozenset[str]) -> Iterator[str]:
    for name, (kind, is_guarded) in before.relations.items():
        found = after.relations.get(name)
        if found is None or found[0] != kind:
            yield f"{name} is gone"
        elif found[1] and not is_guarded and name not in guarded:
            yield f"{name} has row-level security"


def _columns(before: Schema, after: Schema) -> Iterator[str]:
    for (table, name), (kind, must, has_default) in before.columns.items():
        found = after.columns.get((table, name))
        if found is None or found[0] != kind:
            yield f"{table}.{name} is gone, or is no {kind}"
        elif found[1] and not must:
            yield f"{table}.{name} must have a value"
        elif has_default and not found[2]:
            yield f"{table}.{name} has no value by itself any more"
    for (table, name), (_, must, has_default) in after.columns.items():
        if table in before.relations and (table, name) not in before.columns and must and not has_default:
            yield f"{table}.{name} must have a value, and has none by itself"


def _refusals(before: Schema, after: Schema, widened: frozenset[str]) -> Iterator[str]:
    """Writes that would be refused: of keys that are gone, and by what is new about columns that were there."""
    for table, key in before.unique - after.unique:
        yield f"{table} has no unique {key}"
    for table, key in after.unique - before.unique:
        if table in before.relations:
            yield f"{table} has a unique {key}"
    for (table, name), (text, of) in after.constraints.items():
        is_of_old = any((table, column) in before.columns for column in of)
        if is_of_old and before.constraints.get((table, name), ("",))[0] != text and name not in widened:
            yield f"{table} has {name}: {text}"
