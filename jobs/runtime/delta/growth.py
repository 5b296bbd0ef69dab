"""A table keeps the columns that it was created with, and gains the nullable ones that this version adds.

The version of its schema stands in its log. A program that knows only older versions must not write: it would leave
columns empty that the newer one relies on.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from jobs.runtime.errors import Refused

SCHEMA_VERSION = "schema"
"""The transaction with the version of a table's schema (`streams.SCHEMA_VERSIONS`)."""


def refuse_newer(table: DeltaTable, known: int) -> None:
    """Raises Refused for a table whose schema has a later version than the `known` one."""
    found = table.transaction_version(SCHEMA_VERSION) or 1
    if found > known:
        raise Refused(
            f"{table.table_uri} has version {found} of its schema and this program knows {known}: a newer version of "
            "Weir wrote it; install that version again"
        )


def missing_columns(table: DeltaTable, schema: pa.Schema) -> list[Field]:
    """The columns of `schema` that `table` lacks, in order.

    Raises Refused when the table is not an older or newer version's: a column of another type, one that we lack and
    that must have a value, or one that it lacks and that must have one.
    """
    held = {field.name: field for field in table.schema().fields}
    wanted = {field.name: field for field in Schema.from_arrow(schema).fields}
    wrong = [name for name, field in wanted.items() if name in held and held[name].type != field.type]
    wrong += [name for name, field in wanted.items() if name not in held and not field.nullable]
    wrong += [name for name, field in held.items() if name not in wanted and not field.nullable]
    if wrong:
        raise Refused(
            f"{table.table_uri} was made by another program or version: this one cannot write its columns "
            f"{', '.join(wrong)}; run the version of Weir that wrote the table last, or restore the table"
        )
    return [field for name, field in wanted.items() if name not in held]


def with_stored_columns(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Rows with all columns of the stored table, in its order: null where only another version has the column."""
    if rows.column_names == stored.names:
        return rows
    known = set(rows.column_names)
    fields = [rows.field(field.name) if field.name in known else field for field in stored]
    columns = [rows[field.name] if field.name in known else pa.nulls(len(rows), field.type) for field in stored]
    return pa.table(columns, schema=pa.schema(fields))
