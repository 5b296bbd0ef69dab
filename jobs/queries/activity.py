"""The activity log as it is stored: entries to list, and all of them to verify."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.billing_progress import Row
from jobs.queries.reading import Database, select
from metering.activity_chain import Entry, parsed

COLUMNS = ("number", "at", "made_by", "role", "action", "target", "reason", "before", "after", "hash")

_LISTED = """
    SELECT number, (entry ->> 'at')::timestamptz AS at, entry ->> 'made_by' AS made_by, entry ->> 'role' AS role,
           entry ->> 'action' AS action, entry ->> 'target' AS target, entry ->> 'reason' AS reason,
           (entry -> 'before')::text AS before, (entry -> 'after')::text AS after, hash
    FROM activity_log CROSS JOIN LATERAL (SELECT document::jsonb AS entry) AS parsed
    WHERE (%(start)s::timestamptz IS NULL OR (entry ->> 'at')::timestamptz >= %(start)s)
      AND (%(end)s::timestamptz IS NULL OR (entry ->> 'at')::timestamptz < %(end)s)
      AND (%(made_by)s::text IS NULL OR entry ->> 'made_by' = %(made_by)s)
      AND (%(target)s::text IS NULL OR entry ->> 'target' = %(target)s)
    ORDER BY number DESC
"""
_ALL = "SELECT number, document, previous, hash FROM activity_log ORDER BY number"


@dataclass(frozen=True)
class ActivityQuery:
    """Which entries to list, the newest first; None: all. `target`: a table, such as `catalog.prices`."""

    start: datetime | None = None
    end: datetime | None = None
    made_by: str | None = None
    target: str | None = None


def activity_rows(database: Database, query: ActivityQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`. `before` and `after`: the row that was changed, as objects, or None."""
    for row in select(database, _LISTED, vars(query)):
        yield {**row, **{name: _object(row[name]) for name in ("before", "after")}}


def stored_entries(database: Database) -> Iterator[Entry]:
    """All entries, in their order."""
    return (Entry(**row) for row in select(database, _ALL, {}))


def _object(text: str | None) -> Any:
    return None if text is None else parsed(text)
