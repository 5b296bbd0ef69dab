"""The audit within a history: the shipped functions on what the tables hold then, without Spark's tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
from deltalake import DeltaTable

from jobs.audit.appended import append
from jobs.audit.contracted import JUDGED_FROM, later_contracts
from jobs.audit.examined import SUM, USAGE_READ, as_table, examined, journal_read
from jobs.audit.kept import is_each_once, kept
from jobs.audit.pinned import Asked, pin
from jobs.audit.recomputed import IS_CONTRACTED, Pinned
from jobs.audit.versions_told import otherwise_told
from jobs.joins.config import JoinsConfig
from jobs.joins.past import is_paired
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.words import Disposition


@dataclass(frozen=True)
class Examined:
    """What one audit found: how it judged, what has no known cause, and how many rows put the rest right."""

    pinned: Pinned
    faults: list[Any]
    appended: int


def audit(
    tables: str,
    now: datetime,
    *,
    appends: bool = True,
    most_rows: int = 1_000_000,
    present: JoinsConfig = JoinsConfig(),  # noqa: B008 -- frozen
) -> Examined | None:
    """One audit of all that is there; None before joins has made anything. `present`: what joins is started with."""
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None or not usage.file_uris():
        return None
    tables_of = {Table.JOURNAL: journal, Table.USAGE: usage}
    held = {name: kept(table) for name, table in tables_of.items()}
    pinned = pin(usage, held.values(), tables, present, Asked(most_rows=most_rows))
    rows = _rows(journal, (*journal_read(pinned), *JUDGED_FROM, "disposition")).filter(pl.col("lsn") < pinned.position)
    concerned = rows.filter(is_paired()).with_columns(pl.lit(value=False).alias(IS_CONTRACTED))
    if later := later_contracts(journal, pinned.position, pinned.sums):
        unknown = rows.filter(pl.col("family").is_null() & (pl.col("disposition") == Disposition.ACCEPTED))
        read = [name for name in journal_read(pinned) if name in rows.columns]
        judged = later.takes(unknown, read).with_columns(pl.lit(value=True).alias(IS_CONTRACTED))
        concerned = pl.concat([concerned, judged], how="diagonal")
    found = examined(concerned, _rows(usage, USAGE_READ), pinned)
    (stream,) = found.filter(pl.col("kind") == SUM)["corrections"]
    corrections = as_table(stream)
    if appends and len(corrections):
        append(usage, corrections, now)
    faults = [
        *found.filter(pl.col("kind") != SUM).to_dicts(),
        *(held[name] for name, table in tables_of.items() if held[name].missing or not is_each_once(table, held[name])),
        *otherwise_told(
            journal,
            {Table.ACCOUNTS: pinned.accounts, Table.PRICES: pinned.prices},
            held[Table.JOURNAL].first,
            pinned.position,
        ),
    ]
    return Examined(pinned, faults, len(corrections))


def _rows(table: DeltaTable, columns: tuple[str, ...]) -> pl.DataFrame:
    held = {field.name for field in table.schema().fields}
    return pl.DataFrame(table.to_pyarrow_table(columns=sorted(held & set(columns))))
