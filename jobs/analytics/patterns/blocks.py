"""Outcomes that patterns look at, in blocks: those of a minute in one value, with the columns that any pattern reads.

A row of Postgres for each outcome was nearly all that patterns cost.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from io import BytesIO
from operator import itemgetter
from typing import NamedTuple

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.analytics.config import LSNS
from metering.meters import QUANTITY_DECIMALS
from metering.patterns.burst import AnyPattern

OUTCOMES = "*outcomes"
"""The view of a staged row that is a block: no view has such a name."""
AT, LSN = "event_time", "#lsn"
"""When an outcome occurred, and the journal's lsn that names it: no column has the name of the latter."""
DECIMAL = pl.Decimal(38, QUANTITY_DECIMALS)
NUMBER = f"decimal(38,{QUANTITY_DECIMALS})"
"""DECIMAL as Spark names it."""
INSTANT = pl.Datetime("us", "UTC")
MAX_ROWS = 50_000
"""Outcomes of a block: it is one value of Postgres, and written as text on its way."""


class Block(NamedTuple):
    """Outcomes of a minute, and how many they are; `content` is an Arrow file of them (`read_block`)."""

    minute: datetime
    rows: int
    content: bytes


def stored_as(pattern: AnyPattern, column: str) -> str:
    """The name of a pattern's column in a block: one that it reads as numbers is another one than the text."""
    return f"#{column}" if column in pattern.numbers else column


def columns_of(patterns: Iterable[AnyPattern]) -> dict[str, pl.DataType]:
    """The columns of blocks that these patterns read, beside AT and LSN: decimals, and texts."""
    listed = tuple(patterns)
    texts = {column for pattern in listed for column in pattern.columns if column not in pattern.numbers}
    numbers = {f"#{column}" for pattern in listed for column in pattern.numbers}
    return {**dict.fromkeys(sorted(texts), pl.String()), **dict.fromkeys(sorted(numbers), DECIMAL)}


def blocks_in_tasks(outcomes: DataFrame, patterns: Sequence[AnyPattern], schema: pa.Schema) -> DataFrame:
    """Outcomes (event_time, LSNS, the columns of patterns) → rows as panes are staged, each a block (`staged_blocks`).

    Made by tasks of Spark, so that a row for each outcome goes nowhere.
    """
    values = [
        (F.col(name[1:]).try_cast(NUMBER) if kind == DECIMAL else F.col(name).cast("string")).alias(name)
        for name, kind in columns_of(patterns).items()
    ]
    rows = outcomes.select(AT, F.coalesce(*LSNS).alias(LSN), *values)
    return rows.mapInArrow(_in_task(schema), from_arrow_schema(schema))


def blocks_of_rows(outcomes: pl.DataFrame | pa.Table, patterns: Sequence[AnyPattern]) -> list[Block] | None:
    """The same of outcomes that the driver has; None where Spark must cast a column: a number with a floating point has
    another last digit, and another text, by each library.
    """
    rows = pl.DataFrame(outcomes)
    values = []
    for name, kind in columns_of(patterns).items():
        column = pl.col(name.removeprefix("#"))
        stored = rows.schema[name.removeprefix("#")]
        if not (stored.is_integer() or (kind != DECIMAL and stored == pl.String)):
            return None
        values.append(column.cast(kind).alias(name))
    at = pl.col(AT).dt.convert_time_zone("UTC")
    return blocks_of(rows.select(at, pl.coalesce(*LSNS).alias(LSN), *values))


def _in_task(schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if parts := [batch for batch in batches if batch.num_rows]:
            yield from staged_blocks(pl.DataFrame(pa.Table.from_batches(parts)), schema).to_batches()

    return run


def staged_blocks(outcomes: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Outcomes (AT, LSN, columns) → staged rows: `window_start` the minute, `version` how many they are, `measures`
    the outcomes as an Arrow file in Base64.
    """
    rows = [
        {
            "view": OUTCOMES,
            "version": str(block.rows),
            "window_start": block.minute,
            "keys": "[]",
            "measures": b64encode(block.content).decode(),
        }
        for block in blocks_of(outcomes)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def blocks_of(outcomes: pl.DataFrame) -> list[Block]:
    """Outcomes (AT, LSN, columns) → blocks, by minute."""
    return [
        Block(minute, len(block), _written(block))
        for (minute,), whole in sorted(outcomes.group_by(pl.col(AT).dt.truncate("1m")), key=itemgetter(0))
        for block in whole.iter_slices(MAX_ROWS)
    ]


def _written(outcomes: pl.DataFrame) -> bytes:
    # Compressed it is a sixth as long, and to write the rest into Postgres would take longer.
    buffer = BytesIO()
    outcomes.write_ipc(buffer, compression="zstd", compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


def read_block(content: bytes) -> pl.DataFrame:
    """The outcomes of a block: AT, LSN and the columns that it was written with."""
    return pl.read_ipc(BytesIO(content))
