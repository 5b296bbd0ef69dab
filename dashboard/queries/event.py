"""One request or event: the lineage from the bill to its records, as `weir explain` shows it, within the scope."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
from deltalake.exceptions import DeltaError

from dashboard.backend import Backend, Unavailable
from jobs.explain.database import Stored
from jobs.explain.explanation import Sources, explain_found
from jobs.explain.files import Files
from jobs.explain.records import DEFAULT_PERIOD, Period, Tables
from jobs.streams import Table

MAX_ROWS = 20
"""Of usage; of records four times as many."""
SHOWN_CHARACTERS = 4_096
"""Of a record's value."""


DEFAULT_DAYS = DEFAULT_PERIOD.days


@dataclass(frozen=True)
class Event:
    """The document of `weir explain ID --format json`; None: nothing was found.

    A record's value is text, cut after SHOWN_CHARACTERS; `more_characters` is the number of the others.
    """

    document: dict[str, Any] | None


def read_event(backend: Backend, text: str, days: int) -> Event:
    """All that is known of a request, or else of an event, of this id that was received in the last `days`."""
    with backend.snapshot() as cursor:
        # The database first: what billing has read is in tables that are read after it.
        stored = Stored(cursor)
        now = stored.now()
        usage = backend.table(Table.USAGE)
        journal, of_usage, prices = (_files(backend, name) for name in (Table.JOURNAL, Table.USAGE, Table.PRICES))
        whose = None if backend.scope.is_all else backend.scope.holds()
        tables = Tables(journal, of_usage, whose, MAX_ROWS)
        try:
            found = tables.of_id(text, Period(now - timedelta(days=days)))
            if found.usage.is_empty() and found.records.is_empty():
                return Event(None)
            document = explain_found(Sources(stored, tables, prices, usage), found)
        except (DeltaError, OSError, pl.exceptions.PolarsError) as error:
            raise Unavailable(f"The tables journal and usage cannot be read: {type(error).__name__}.") from error
    return Event({**document, "records": [_shortened(record) for record in document["records"]]})


def _files(backend: Backend, name: Table) -> Files:
    table = backend.table(name)
    return Files.none(name) if table is None else Files.of(table, name)


def _shortened(record: dict[str, Any]) -> dict[str, Any]:
    encoded = record.pop("value_base64", None)
    value = f"base64: {encoded}" if encoded is not None else record["value"] or ""
    more = max(0, len(value) - SHOWN_CHARACTERS)
    return {**record, "value": value[:SHOWN_CHARACTERS], "more_characters": more}
