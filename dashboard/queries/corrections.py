"""Corrections: changes of windows after they were shown closed, with the values before and after."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from dashboard.backend import Backend
from dashboard.exact import Quantity, with_plain
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.stragglers import newest_usage_of
from metering.vocabulary import Job

MAX_ROWS = 1_000


@dataclass(frozen=True)
class CorrectionFilter:
    """Which corrections: made in the last `hours`, of one account or all."""

    hours: int = 24
    account: str | None = None


@dataclass(frozen=True)
class Correction:
    """A change of a window, all price versions together. An amount is None as long as nothing of it has a price."""

    corrected_at: datetime
    window_start: datetime
    account: str
    model: str | None
    meter: str
    currency: str | None
    cause: str
    old_quantity: Quantity
    new_quantity: Quantity
    old_amount: Decimal | None
    new_amount: Decimal | None


@dataclass(frozen=True)
class Corrections:
    """The latest first."""

    feed: Feed
    corrections: tuple[Correction, ...]
    is_cut: bool
    newest_usage: datetime | None


_LIST = """
    SELECT corrected_at, window_start, account, model, meter, currency, cause,
           old_quantity, new_quantity, old_amount, new_amount
    FROM corrections
    WHERE corrected_at >= %(since)s AND (%(account)s::text IS NULL OR account = %(account)s)
    ORDER BY corrected_at DESC, number DESC LIMIT %(limit)s
"""


def read_corrections(backend: Backend, chosen: CorrectionFilter) -> Corrections:
    """The corrections that match."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        since = feed.read_at - timedelta(hours=chosen.hours)
        parameters = {"since": since, "account": chosen.account, "limit": MAX_ROWS + 1}
        rows = cursor.execute(_LIST, parameters).fetchall()
        newest_usage = newest_usage_of(cursor)
    return Corrections(
        feed=feed,
        corrections=tuple(Correction(**with_plain(row, "old_quantity", "new_quantity")) for row in rows[:MAX_ROWS]),
        is_cut=len(rows) > MAX_ROWS,
        newest_usage=newest_usage,
    )
