"""Reads the journal as a Delta table, without an engine: only the files and columns that a question needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import typer
from deltalake import DeltaTable

from jobs.audit.compare.partition_balance import Partition
from jobs.journal.elements import is_record_arrow
from jobs.runtime.delta.table import open_table
from jobs.streams import INSTANT, Table
from metering.vocabulary import Disposition


def open_journal(tables: str) -> DeltaTable | None:
    """The newest version of the journal below the root `tables`; None, with a line on standard error, without one."""
    found = open_table(tables, Table.JOURNAL)
    if found is None:
        typer.echo(f"There is no journal below {tables}: ingestion has not made it yet, or it is elsewhere.", err=True)
    return found


def rows_in_order(journal: DeltaTable, columns: Sequence[str], where: pc.Expression) -> Iterator[dict[str, object]]:
    """The rows that match `where`, with the keys `columns`, in the order of record; one file in memory at a time.

    A column that the table gets at the next start of ingestion is None until then.
    """
    dataset = journal.to_pyarrow_dataset()
    held = [name for name in columns if name in dataset.schema.names]
    nothing = dict.fromkeys(columns)
    first_lsn = _first_lsn_by_file(journal)
    fragments = sorted(dataset.get_fragments(where), key=lambda fragment: first_lsn[PurePosixPath(fragment.path).name])
    for fragment in fragments:
        read = fragment.to_table(schema=dataset.schema, columns=list(dict.fromkeys([*held, "lsn"])), filter=where)
        yield from ({**nothing, **row} for row in read.sort_by("lsn").select(held).to_pylist())


def received_between(start: datetime | None, end: datetime | None) -> pc.Expression:
    """Which rows were received from `start` on and before `end`; None is unbounded."""
    found = pc.scalar(value=True)
    if start is not None:
        found &= pc.field("received_at") >= pa.scalar(start, INSTANT)
    if end is not None:
        found &= pc.field("received_at") < pa.scalar(end, INSTANT)
    return found


def redriven(journal: DeltaTable) -> Iterator[dict[str, object]]:
    """The accepted rows (lsn, replays_lsn, topic, partition) of dead letters that were sent again, one of each."""
    schema = pa.schema(journal.schema().to_arrow())
    if "replays_lsn" in schema.names:
        where = pc.field("replays_lsn").is_valid() & (pc.field("disposition") == Disposition.ACCEPTED.value)
        columns = ("lsn", "replays_lsn", "topic", "partition")
        yield from rows_in_order(journal, columns, where & is_record_arrow(schema))


def count_redriven(journal: DeltaTable) -> Counter[Partition]:
    """How many they are, per topic and partition."""
    return Counter((str(row["topic"]), int(str(row["partition"]))) for row in redriven(journal))


def _first_lsn_by_file(journal: DeltaTable) -> dict[str, int]:
    files = pa.table(journal.get_add_actions(flatten=True))
    paths, lsns = files["path"].to_pylist(), files["min.lsn"].to_pylist()
    return {PurePosixPath(path).name: lsn for path, lsn in zip(paths, lsns, strict=True)}
