"""The usage windows of the last hour, per account or model, and how final they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from dashboard.backend import Backend
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.whole import whole
from metering.lateness import WINDOW_STATE_SQL
from metering.words import Job

MOST_ROWS = 1_000
"""A page with more rows helps nobody and would slow down every viewer's browser."""


class By(StrEnum):
    """What a minute is split by."""

    ACCOUNT = "account"
    MODEL = "model"


@dataclass(frozen=True)
class WindowFilter:
    """Which windows: of the last `hours`, of one account or all, one row per account or per model."""

    hours: int = 1
    by: By = By.ACCOUNT
    account: str | None = None


@dataclass(frozen=True)
class UsageWindow:
    """One minute of one account or model (`key`) in one currency. `state`: open, closing, closed or corrected.

    `amount` is None where no price matched: that is not 0.
    """

    window_start: datetime
    window_end: datetime
    key: str | None
    currency: str | None
    state: str
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    amount: Decimal | None
    unpriced_quantity: int
    late_rows: int


@dataclass(frozen=True)
class UsageWindows:
    """Newest first. `newest` is the end of the newest window with usage there ever was; None: there never was any.

    Windows that end at `closed_until` or before are closed; None as long as nobody knows.
    """

    feed: Feed
    windows: tuple[UsageWindow, ...]
    is_cut: bool
    newest: datetime | None
    closed_until: datetime | None


_QUANTITIES = ("requests", "input_tokens", "output_tokens", "cached_tokens", "unpriced_quantity", "late_rows")

_CLOSED = "SELECT closed_until FROM closed_usage"
_NEWEST = "SELECT window_end FROM usage_windows ORDER BY window_start DESC LIMIT 1"

_WINDOWS = """
    SELECT window_start, window_end, {key} AS key, currency, {state} AS state,
           coalesce(sum(quantity) FILTER (WHERE meter = 'requests'), 0) AS requests,
           coalesce(sum(quantity) FILTER (WHERE meter = 'input_tokens'), 0) AS input_tokens,
           coalesce(sum(quantity) FILTER (WHERE meter = 'output_tokens'), 0) AS output_tokens,
           coalesce(sum(quantity) FILTER (WHERE meter = 'cached_tokens'), 0) AS cached_tokens,
           sum(amount) AS amount,
           coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0) AS unpriced_quantity,
           coalesce(sum(late_rows) FILTER (WHERE meter = 'requests'), 0) AS late_rows
    FROM usage_windows
    WHERE window_start > %(since)s AND (%(account)s::text IS NULL OR account = %(account)s)
    GROUP BY window_start, window_end, {key}, currency
    HAVING bool_or(quantity <> 0)
    ORDER BY window_start DESC, {key}, currency
    LIMIT %(limit)s
"""


def read_windows(backend: Backend, chosen: WindowFilter) -> UsageWindows:
    """The windows that began in the last hours before what billing has folded (before now, when it never ran)."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        newest = cursor.execute(_NEWEST).fetchone()
        closed = cursor.execute(_CLOSED).fetchone()
        closed_until = closed["closed_until"] if closed else None
        rows = cursor.execute(
            _WINDOWS.format(key=chosen.by.value, state=WINDOW_STATE_SQL.format(corrected="bool_or(corrected)")),
            {
                "frontier": feed.frontier,
                "closed_until": closed_until,
                "since": (feed.frontier or feed.read_at) - timedelta(hours=chosen.hours),
                "account": chosen.account,
                "limit": MOST_ROWS + 1,
            },
        ).fetchall()
    windows = tuple(UsageWindow(**whole(row, *_QUANTITIES)) for row in rows[:MOST_ROWS])
    return UsageWindows(feed, windows, len(rows) > MOST_ROWS, newest["window_end"] if newest else None, closed_until)
