"""The explanation of one request or event, of some accounts or of all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import polars as pl
from deltalake import DeltaTable

from jobs.billing_progress import Database
from jobs.explain.database import Stored
from jobs.explain.documents import Document
from jobs.explain.explanation import Sources, explain_found
from jobs.explain.files import Files
from jobs.explain.records import Period, Tables
from jobs.streams import Table


def explain_id(
    database: Database,
    open_table: Callable[[Table], DeltaTable | None],
    text: str,
    *,
    whose: pl.Expr | None,
    within: timedelta,
    limit: int,
) -> Document | None:
    """The document of `weir explain ID`; None where nothing of this id was received `within` a time before now.

    `open_table` gives the newest version of a table, or None before it was made. `whose`: of rows with `account`, which
    may be shown; None: all. `limit`: of rows of usage.
    """
    stored = Stored(database)
    # The database first: what billing has read is in tables that are read after it.
    now = stored.now()
    opened = {name: open_table(name) for name in (Table.JOURNAL, Table.USAGE, Table.PRICES)}
    journal, usage, prices = (
        Files.none(name) if table is None else Files.of(table, name) for name, table in opened.items()
    )
    tables = Tables(journal, usage, whose, limit)
    found = tables.of_id(text, Period(now - within))
    if found.usage.is_empty() and found.records.is_empty():
        return None
    return explain_found(Sources(stored, tables, prices, opened[Table.USAGE]), found)
