"""Pure functions of Arrow tables in Spark's Python workers: on executors, or beside the driver where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

Function = Callable[[pa.Table], pa.Table]


def in_workers(frame: DataFrame, function: Function, result: pa.Schema, max_rows: int | None = None) -> DataFrame:
    """What `function` makes of the rows of each partition; columns of `result`.

    It gets at most about `max_rows` rows at once, or without that all rows of the partition. It is not called where
    there are none. It and what it needs is sent to the workers, so it must be picklable.
    """

    def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in tables(batches, max_rows):
            yield from function(rows).select(result.names).cast(result).to_batches()

    # Arrow's schema says which instants have a zone, which Spark requires.
    return frame.mapInArrow(mapped, from_arrow_schema(result, prefer_timestamp_ntz=False))


def tables(batches: Iterator[pa.RecordBatch], max_rows: int | None) -> Iterator[pa.Table]:
    """The batches as tables of at most `max_rows` rows, if no batch has more; of no rows none."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if held and max_rows is not None and rows + batch.num_rows > max_rows:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)
