"""Which rows of the journal represent a record: an event may be several rows, of which only the first counts.

A journal has no column for elements until a contract needs it. A column of that name which a contract of an earlier
release declared has another type.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from metering.contracts.unnest import COLUMN

FIELD = pa.field(COLUMN, pa.int32())
KIND = pl.Int32()


def has_elements(schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> bool:
    """Whether rows with these columns may be elements of events."""
    return schema.get(COLUMN) == KIND


def is_record(schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.Expr:
    """Whether a row represents its record, for rows with these columns."""
    return (pl.col(COLUMN) <= 1).fill_null(value=True) if has_elements(schema) else pl.lit(value=True)


def is_record_arrow(schema: pa.Schema) -> pc.Expression:
    """The same, as a filter of Arrow's."""
    if COLUMN not in schema.names or schema.field(COLUMN).type != FIELD.type:
        return pc.scalar(True)
    return pc.field(COLUMN).is_null() | (pc.field(COLUMN) <= 1)
