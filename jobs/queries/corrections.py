"""Corrections: what changed windows after they were shown closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.billing_progress import Row
from jobs.queries.reading import Database, select
from metering.vocabulary import UsageCause

COLUMNS = (
    *("window_start", "account", "model", "meter", "currency", "cause", "old_quantity", "new_quantity"),
    *("old_amount", "new_amount", "decision", "corrected_at", "dimensions", "usage_lsns"),
    "period",
)

_CHOSEN = """
    FROM corrections
    WHERE (%(start)s::timestamptz IS NULL OR window_start >= %(start)s)
      AND (%(end)s::timestamptz IS NULL OR window_start < %(end)s)
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(causes)s::text[] IS NULL OR cause = ANY (%(causes)s))
"""
CAUSE = f"CASE cause WHEN '{UsageCause.CONTRACTED}' THEN '{UsageCause.SCHEMA_ADDED}' ELSE cause END AS cause"
"""The cause of a row, by its name of today: earlier releases have another word for SCHEMA_ADDED."""
_LISTED = ", ".join(COLUMNS).replace(" cause,", f" {CAUSE},")
_STATEMENT = f"""
    SELECT {_LISTED} {_CHOSEN}
    ORDER BY window_start, account, model, meter, currency, number
"""
_SINCE = f"""
    SELECT number, {_LISTED} {_CHOSEN} AND number > %(since)s
    ORDER BY number LIMIT %(limit)s
"""


@dataclass(frozen=True)
class CorrectionQuery:
    """Which corrections to list; `start` and `end` select by the start of the window that was corrected."""

    start: datetime | None = None
    end: datetime | None = None
    accounts: tuple[str, ...] = ()
    cause: UsageCause | None = None


def correction_rows(database: Database, query: CorrectionQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, those of one window in the order in which they changed it.

    `old_` and `new_` are of the whole window, all price versions together; an amount is None as long as nothing of it
    has a price.
    """
    return select(database, _STATEMENT, _parameters(query))


def corrections_since(database: Database, query: CorrectionQuery, number: int, limit: int) -> Iterator[Row]:
    """Rows with `number` and the keys `COLUMNS`: the first that were made after the one with this number, in order."""
    return select(database, _SINCE, {**_parameters(query), "since": number, "limit": limit})


def _stored(cause: UsageCause | None) -> list[str] | None:
    """The words that rows have for a cause; None: any."""
    renamed = (UsageCause.SCHEMA_ADDED, UsageCause.CONTRACTED)
    return None if cause is None else [*map(str, renamed if cause in renamed else (cause,))]


def _parameters(query: CorrectionQuery) -> Mapping[str, Any]:
    return {
        "start": query.start,
        "end": query.end,
        "accounts": list(query.accounts) or None,
        "causes": _stored(query.cause),
    }
