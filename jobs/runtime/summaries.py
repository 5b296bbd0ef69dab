"""A batch of many rows, reduced in tasks of Spark that read its files themselves: to the driver come summaries alone.

The tasks run on executors. Neither Java nor the driver sees a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from jobs.runtime.batch import Seen, runs_in, seen_in_runs
from jobs.runtime.delta.pieces import LSN, Pieces, in_tasks
from jobs.runtime.worker_garbage import exempt_imports

Function = Callable[[pa.Table], pa.Table]
NUMBER = "number"
MADE = pa.schema([pa.field(name, pa.binary()) for name in ("summary", "runs", "last")])
"""Each is a table of Arrow: what a task made, which lsns it has read, and columns of the last of these rows."""


@dataclass(frozen=True)
class Summary:
    """What each task made, which rows all of them have read, and columns of the last one."""

    rows: pa.Table
    seen: Seen
    last: Mapping[str, Any]


def summarized(
    spark: SparkSession, found: Pieces, part: Function, added: Function, of_last_row: Iterable[str] = ()
) -> Summary:
    """What `added` makes, in each task, of all that `part` makes of at most `BATCH_ROWS` of its rows.

    Both and what they need are sent to the workers, so they must be picklable.
    """
    names = tuple(of_last_row)

    def make(parts: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        made, runs, last = list[pa.Table](), list[pl.DataFrame](), list[pa.Table]()
        for rows in parts:
            made.append(part(rows))
            runs.append(runs_in(rows[LSN]))
            place = pc.index(rows[LSN], pc.max(rows[LSN])).as_py()
            last.append(rows.select([LSN, *names]).slice(place, 1))
        if made:
            reported = (added(pa.concat_tables(made)), pl.concat(runs).to_arrow(), pa.concat_tables(last))
            yield pa.record_batch([[packed(table)] for table in reported], schema=MADE)

    nothing = Summary(part(found.schema.empty_table()), Seen(0, None, None, is_chain=True), {})
    if not found.tasks:
        return nothing
    cores = max(1, spark.sparkContext.defaultParallelism)
    kinds = ", ".join(f"{name} binary" for name in MADE.names)
    answers = in_tasks(spark, found, make, kinds, tasks=min(len(found.tasks), cores)).toArrow()
    if not len(answers):
        return nothing
    rows, runs, last = (pa.concat_tables(map(unpacked, answers[name].to_pylist())) for name in MADE.names)
    newest = last.sort_by([(LSN, "descending")]).select(names).slice(0, 1).to_pylist()[0]
    return Summary(rows, seen_in_runs(pl.DataFrame(runs)), newest)


def answers_of_tasks(
    spark: SparkSession, count: int, names: Iterable[str], make: Callable[[int], Mapping[str, pa.Table]]
) -> list[Mapping[str, pa.Table]]:
    """What `make` answers in tasks to each number below `count`, in their order: a few small tables with these names.

    It and what it needs are sent to the workers, so they must be picklable. A task may run twice: one of its answers
    counts.
    """
    listed = [*names]
    schema = pa.schema([pa.field(name, pa.binary()) for name in (NUMBER, *listed)])

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                made = make(number)
                values = [[str(number).encode()], *[[packed(made[name])] for name in listed]]
                yield pa.record_batch([pa.array(value, pa.binary()) for value in values], schema=schema)
        exempt_imports()

    tasks = min(count, max(1, spark.sparkContext.defaultParallelism))
    kinds = ", ".join(f"{name} binary" for name in schema.names)
    rows = spark.range(0, count, 1, tasks).mapInArrow(run, kinds).toArrow().to_pylist()
    found = {int(row[NUMBER]): {name: unpacked(row[name]) for name in listed} for row in rows}
    return [found[number] for number in range(count)]


def packed(table: pa.Table) -> bytes:
    """A table as one value of a column."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def unpacked(stream: bytes) -> pa.Table:
    """The table."""
    return pa.ipc.open_stream(stream).read_all()
