"""The explanation of one request or event, of some accounts or of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
from deltalake import DeltaTable

from jobs.billing_progress import Database
from jobs.explain.database import Stored
from jobs.explain.documents import Document
from jobs.explain.event import event_object
from jobs.explain.explanation import Sources, explain_found
from jobs.explain.files import Files
from jobs.explain.records import Period, Tables
from jobs.streams import Table


@dataclass(frozen=True)
class Look:
    """What may be shown, and how much of it.

    `whose`: of rows with `account`; None: all. `within`: only what was received so long before now. `limit`: of rows of
    usage.
    """

    whose: pl.Expr | None
    within: timedelta
    limit: int


OpenTable = Callable[[Table], DeltaTable | None]
"""The newest version of a table; None before it was made."""


def explain_id(database: Database, open_table: OpenTable, text: str, look: Look) -> Document | None:
    """The document of `weir explain ID`; None where nothing of this id was received."""
    sources, period = _sources(database, open_table, look)
    found = sources.tables.of_id(text, period)
    if found.usage.is_empty() and found.records.is_empty():
        return None
    return explain_found(sources, found)


def explain_event(database: Database, open_table: OpenTable, source: str, id_: str, look: Look) -> Document | None:
    """`event` (`event_object`) and the document of its records; None where nothing of this identity was received."""
    sources, period = _sources(database, open_table, look)
    found = sources.tables.of_event(source, id_, period)
    if found.records.filter(pl.col("source") == source, pl.col("id") == id_).is_empty():
        return None
    return {"event": event_object(source, id_, found.records), **explain_found(sources, found)}


def _sources(database: Database, open_table: OpenTable, look: Look) -> tuple[Sources, Period]:
    stored = Stored(database)
    # The database first: what billing has read is in tables that are read after it.
    now = stored.now()
    opened = {name: open_table(name) for name in (Table.JOURNAL, Table.USAGE, Table.PRICES)}
    journal, usage, prices = (
        Files.none(name) if table is None else Files.of(table, name) for name, table in opened.items()
    )
    tables = Tables(journal, usage, look.whose, look.limit)
    return Sources(stored, tables, prices, opened[Table.USAGE]), Period(now - look.within)
