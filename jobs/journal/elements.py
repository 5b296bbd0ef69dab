"""Which rows of the journal represent a record: it may be several rows, of which only the first counts.

A record may be a batch of events, and an event may hold several calls.

A journal has no column for elements until a contract needs it. A column of that name which a contract of an earlier
release declared has another type.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from metering.contracts.unnest import COLUMN

ELEMENTS_OF_AN_EVENT = 1_000
"""Elements of the second event of a batch count from 1,001 on, those of the third from 2,001 on, and so on. A journal
holds such numbers: this one never changes."""
FIELD = pa.field(COLUMN, pa.int32())
KIND = pl.Int32()


def has_elements(schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> bool:
    """Whether rows with these columns may be elements of events."""
    return schema.get(COLUMN) == KIND


def has_room(schema: pa.Schema) -> bool:
    """Whether a table with these columns has, or can have, the column: an earlier contract's stays what it is."""
    return COLUMN not in schema.names or schema.field(COLUMN).type == FIELD.type


def event_place(element: pl.Expr) -> pl.Expr:
    """Of an `element` the place of its event in the record's batch, from 1 on; 1 where the record is no batch."""
    return (pl.max_horizontal(element.fill_null(0), 1).cast(pl.Int64) - 1) // ELEMENTS_OF_AN_EVENT + 1


def place_in_event(element: pl.Expr) -> pl.Expr:
    """Of an `element` its place in its event, from 1 on; 0 of an event that came alone and has none."""
    number = element.fill_null(0).cast(pl.Int64)
    return pl.when(number > 0).then((number - 1) % ELEMENTS_OF_AN_EVENT + 1).otherwise(0).cast(pl.Int32)


def is_event(schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.Expr:
    """Whether a row represents its event, for rows with these columns: a record may hold several."""
    return place_in_event(pl.col(COLUMN)) <= 1 if has_elements(schema) else pl.lit(value=True)


def is_of_several(schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.Expr:
    """Whether a row is one of a batch of events or of an event's elements, for rows with these columns."""
    return pl.col(COLUMN).fill_null(0) > 0 if has_elements(schema) else pl.lit(value=False)


def is_record(schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.Expr:
    """Whether a row represents its record, for rows with these columns."""
    return (pl.col(COLUMN) <= 1).fill_null(value=True) if has_elements(schema) else pl.lit(value=True)


def is_record_arrow(schema: pa.Schema) -> pc.Expression:
    """The same, as a filter of Arrow's."""
    if COLUMN not in schema.names or schema.field(COLUMN).type != FIELD.type:
        return pc.scalar(True)
    return pc.field(COLUMN).is_null() | (pc.field(COLUMN) <= 1)


def is_event_arrow(schema: pa.Schema) -> pc.Expression:
    """The same for events: the first row of each."""
    if COLUMN not in schema.names or schema.field(COLUMN).type != FIELD.type:
        return pc.scalar(True)
    before = pc.field(COLUMN) - pc.scalar(1)
    first = before / pc.scalar(ELEMENTS_OF_AN_EVENT) * pc.scalar(ELEMENTS_OF_AN_EVENT)
    return pc.field(COLUMN).is_null() | (pc.field(COLUMN) <= 1) | (before == first)
