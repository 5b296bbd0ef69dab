"""One request or event: the lineage from the bill to its records, as `weir explain` shows it, within the scope."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
from deltalake.exceptions import DeltaError

from dashboard.backend import Backend, Unavailable
from jobs.explain.of_id import Look, explain_id
from jobs.explain.records import DEFAULT_PERIOD

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
    whose = None if backend.scope.is_all else backend.scope.holds()
    with backend.snapshot() as cursor:
        try:
            document = explain_id(cursor, backend.table, text, Look(whose, timedelta(days=days), MAX_ROWS))
            if document is None:
                return Event(None)
        except (DeltaError, OSError, pl.exceptions.PolarsError) as error:
            raise Unavailable(f"The tables journal and usage cannot be read: {type(error).__name__}.") from error
    return Event({**document, "records": [_shortened(record) for record in document["records"]]})


def _shortened(record: dict[str, Any]) -> dict[str, Any]:
    encoded = record.pop("value_base64", None)
    value = f"base64: {encoded}" if encoded is not None else record["value"] or ""
    more = max(0, len(value) - SHOWN_CHARACTERS)
    return {**record, "value": value[:SHOWN_CHARACTERS], "more_characters": more}
