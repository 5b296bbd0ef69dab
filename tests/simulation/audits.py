"""The audit within a history: the shipped functions on what the tables hold then, without Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.audit.again import corrects
from jobs.audit.appended import append
from jobs.audit.decisions import inherited
from jobs.audit.examined import SUM, USAGE_READ, as_table, examined, journal_read
from jobs.audit.kept import kept
from jobs.audit.pinned import EVERYTHING, Asked, pin
from jobs.audit.proved import Span, by_bucket, compared
from jobs.audit.recomputed import Pinned
from jobs.audit.spilled import by_part
from jobs.audit.stored import decided as decisions
from jobs.audit.stored import stored
from jobs.billing.sums import COLUMNS
from jobs.joins.config import JoinsConfig
from jobs.joins.past import is_paired
from jobs.runtime.delta.table import open_table
from jobs.streams import Table


@dataclass(frozen=True)
class Examined:
    """What one audit found: how it judged, what has no known cause, and how many rows put the rest right."""

    pinned: Pinned
    faults: list[dict[str, object]]
    appended: int


def audit(tables: str, now: datetime, *, appends: bool = True, most_rows: int = 1_000_000) -> Examined | None:
    """One audit of all that is there; None before joins has made anything."""
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None or not usage.file_uris():
        return None
    pinned = pin(usage, [kept(journal), kept(usage)], tables, JoinsConfig(), Asked(most_rows=most_rows))
    concerned = _rows(journal, (*journal_read(pinned), "disposition")).filter(
        (pl.col("lsn") < pinned.position) & is_paired()
    )
    found = examined(concerned, _rows(usage, USAGE_READ), pinned)
    (stream,) = found.filter(pl.col("kind") == SUM)["corrections"]
    corrections = as_table(stream)
    if appends and len(corrections):
        append(usage, corrections, now)
    return Examined(pinned, found.filter(pl.col("kind") != SUM).to_dicts(), len(corrections))


def proof(tables: str, database: str) -> Iterator[str]:
    """What is wrong of all that billing and sessionization hold, as far as it can be told yet."""
    made = stored(database)
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None or not usage.file_uris():
        return
    billed, decided = made.billed, inherited(corrects(usage, made.billed), decisions(made.billed))
    names = [field.name for field in usage.schema().fields if field.name in COLUMNS]
    rows = usage.to_pyarrow_table(columns=names, filters=pc.field("lsn") < billed.position)
    parts = by_part(by_bucket(rows, billed, decided).sort("bucket").iter_rows())
    found = compared(parts, billed, decided, usage, Span.of(EVERYTHING, kept(usage).since))
    yield from (one.first for one in (found.sums, found.corrections) if one.found)


def _rows(table: DeltaTable, columns: tuple[str, ...]) -> pl.DataFrame:
    held = {field.name for field in table.schema().fields}
    return pl.DataFrame(table.to_pyarrow_table(columns=sorted(held & set(columns))))
