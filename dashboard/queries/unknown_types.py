"""Event types without a contract: how many events, since when, and the last sender."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard.backend import Backend

MAX_ROWS = 1_000


@dataclass(frozen=True)
class UnknownType:
    """A type whose events are kept and on no bill. `type` is None for all beyond the first thousand together."""

    type: str | None
    events: int
    first_seen_at: datetime
    last_seen_at: datetime
    last_source: str | None


_TYPES = """
    SELECT nullif(type, '') AS type, events, first_seen_at, last_seen_at, last_source
    FROM unknown_types ORDER BY last_seen_at DESC, type LIMIT %s
"""


def read_unknown_types(backend: Backend) -> tuple[UnknownType, ...]:
    """The last seen first. None is shown to those who may not see all accounts."""
    with backend.snapshot() as cursor:
        return tuple(UnknownType(**row) for row in cursor.execute(_TYPES, [MAX_ROWS]).fetchall())
