"""Stragglers: usage that came after its window's grace, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from jobs.billing_progress import Row
from jobs.queries.corrections import CAUSE
from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database, select
from metering.vocabulary import Decision

COLUMNS = (
    *("account", "model", "meter", "window_start", "event_time", "received_at", "late_seconds", "decision"),
    *("quantity", "amount", "currency", "request_id", "usage_lsn", "cause"),
    *("hold_until", "decided_at", "decided_by", "reason"),
)

KEY = ("window_start", "account", "usage_lsn", "meter")
"""What rows are ordered by: no two have the same values."""

# A decided but unbilled straggler has name and reason already, and is still held. When it is no longer held, the
# deadline may have come first, and before a rebuild another row may have had the lsn.
_STATEMENT = f"""
    SELECT account, model, meter, window_start, event_time, received_at, late_seconds::float8,
           stragglers.decision, quantity, amount, currency, request_id, usage_lsn, {CAUSE}, hold_until,
           stragglers.decided_at,
           CASE stragglers.decision WHEN 'hold' THEN decided.decided_by ELSE stragglers.decided_by END AS decided_by,
           CASE stragglers.decision WHEN 'hold' THEN decided.reason ELSE stragglers.reason END AS reason
    FROM stragglers
    LEFT JOIN catalog.decisions AS decided USING (usage_lsn, meter, account, request_id)
    WHERE (%(start)s::timestamptz IS NULL OR window_start >= %(start)s)
      AND (%(end)s::timestamptz IS NULL OR window_start < %(end)s)
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(decision)s::text IS NULL OR stragglers.decision = %(decision)s)
    ORDER BY {", ".join(KEY)}
"""


@dataclass(frozen=True)
class StragglerQuery:
    """Which stragglers to list; `start` and `end` select by the start of the window they belong to."""

    start: datetime | None = None
    end: datetime | None = None
    accounts: tuple[str, ...] = ()
    decision: Decision | None = None
    page: Page | None = None


def straggler_rows(database: Database, query: StragglerQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`. `amount` is None where no price matched; `quantity` and it are signed."""
    statement, more = paged(_STATEMENT, KEY, query.page)
    return select(
        database,
        statement,
        {
            **more,
            "start": query.start,
            "end": query.end,
            "accounts": list(query.accounts) or None,
            "decision": query.decision and query.decision.value,
        },
    )
