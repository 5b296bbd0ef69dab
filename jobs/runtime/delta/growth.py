"""A table keeps the columns that it was created with, and gains the nullable ones that this version adds.

The version of its schema stands in its log, and since which version programs may write beside those columns. One that
knows only older versions must not: it would leave columns empty that the newer one relies on.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from jobs.runtime.errors import Refused

SCHEMA_VERSION = "schema"
"""The transaction with the version of a table's schema (`streams.SCHEMA_VERSIONS`)."""


COMPATIBLE_FROM = "schema.compatible_from"
"""The transaction with the oldest version whose programs may write a table (`streams.compatible_from`)."""


def stored_version(table: DeltaTable) -> int:
    """The version of its schema; 1 for a table of 0.1.0, which kept none."""
    return table.transaction_version(SCHEMA_VERSION) or 1


def refuse_newer(table: DeltaTable, known: int) -> None:
    """Raises Refused for a table of a later schema than the `known` one, unless that says that both may write it."""
    found = stored_version(table)
    if found > known and (table.transaction_version(COMPATIBLE_FROM) or found) > known:
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
