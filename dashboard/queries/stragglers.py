"""Stragglers: usage after its window's grace, the decisions, and the money."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

from dashboard.backend import Backend
from dashboard.exact import Quantity, with_plain
from dashboard.queries.feed import Feed, feed_of
from metering.vocabulary import Job

MAX_ROWS = 1_000


@dataclass(frozen=True)
class StragglerFilter:
    """Which stragglers: received in the last `hours` or waiting, of one account or all, decided so or in any way."""

    hours: int = 24
    account: str | None = None
    decision: str | None = None


@dataclass(frozen=True)
class Straggler:
    """One meter of one usage row that came too late. `amount` is None where no price matched; `decided_by` and
    `reason` where no decision was needed, or none is made yet.
    """

    usage_lsn: int
    account: str
    model: str | None
    meter: str
    request_id: str
    window_start: datetime
    received_at: datetime
    late_seconds: float
    decision: str
    quantity: Quantity
    amount: Decimal | None
    currency: str | None
    hold_until: datetime | None
    decided_by: str | None
    reason: str | None


@dataclass(frozen=True)
class Decided:
    """How many usage rows one decision hit, and their signed money in one currency."""

    decision: str
    currency: str | None
    usage_rows: int
    amount: Decimal


@dataclass(frozen=True)
class Stragglers:
    """The latest received first; the sums are of all that match, listed or not."""

    feed: Feed
    stragglers: tuple[Straggler, ...]
    decided: tuple[Decided, ...]
    is_cut: bool
    newest_usage: datetime | None


_CHOSEN = """
    FROM stragglers
    WHERE (received_at >= %(since)s OR decision = 'hold') AND (%(account)s::text IS NULL OR account = %(account)s)
      AND (%(decision)s::text IS NULL OR decision = %(decision)s)
"""

_LIST = f"""
    SELECT usage_lsn, account, model, meter, request_id, window_start, received_at,
           late_seconds::float8 AS late_seconds, decision, quantity, amount, currency, hold_until, decided_by, reason
    {_CHOSEN} ORDER BY received_at DESC, usage_lsn, meter LIMIT %(limit)s
"""

_DECIDED = f"""
    SELECT decision, currency, count(DISTINCT usage_lsn) AS usage_rows, coalesce(sum(amount), 0) AS amount
    {_CHOSEN} GROUP BY decision, currency ORDER BY decision, currency
"""

_NEWEST_USAGE = "SELECT window_end FROM usage_windows ORDER BY window_start DESC LIMIT 1"


def read_stragglers(backend: Backend, chosen: StragglerFilter) -> Stragglers:
    """The stragglers that match."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        parameters = {
            "since": feed.read_at - timedelta(hours=chosen.hours),
            "account": chosen.account,
            "decision": chosen.decision,
            "limit": MAX_ROWS + 1,
        }
        rows = cursor.execute(_LIST, parameters).fetchall()
        decided = tuple(Decided(**row) for row in cursor.execute(_DECIDED, parameters).fetchall())
        newest_usage = newest_usage_of(cursor)
    return Stragglers(
        feed=feed,
        stragglers=tuple(Straggler(**with_plain(row, "quantity")) for row in rows[:MAX_ROWS]),
        decided=decided,
        is_cut=len(rows) > MAX_ROWS,
        newest_usage=newest_usage,
    )


def newest_usage_of(cursor: psycopg.Cursor[dict[str, Any]]) -> datetime | None:
    """The end of the newest window that there is, as the caller's transaction sees it."""
    newest = cursor.execute(_NEWEST_USAGE).fetchone()
    return newest["window_end"] if newest else None
