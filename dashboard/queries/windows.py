"""The usage windows of the last hour, per account or model, and how final they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dashboard.backend import Backend
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.whole import whole
from metering.lateness import WINDOW_STATE_SQL
from metering.meters import Meter
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
    quantities: Mapping[Meter, int]
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


_CLOSED = "SELECT closed_until FROM closed_usage"
_NEWEST = "SELECT window_end FROM usage_windows ORDER BY window_start DESC LIMIT 1"

_OF_METERS = ", ".join(f"coalesce(sum(quantity) FILTER (WHERE meter = '{meter}'), 0) AS {meter}" for meter in Meter)

_WINDOWS = """
    SELECT window_start, window_end, {key} AS key, currency, {state} AS state,
           {of_meters},
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
            _WINDOWS.format(
                key=chosen.by.value,
                state=WINDOW_STATE_SQL.format(corrected="bool_or(corrected)"),
                of_meters=_OF_METERS,
            ),
            {
                "frontier": feed.frontier,
                "closed_until": closed_until,
                "since": (feed.frontier or feed.read_at) - timedelta(hours=chosen.hours),
                "account": chosen.account,
                "limit": MOST_ROWS + 1,
            },
        ).fetchall()
    windows = tuple(_window(row) for row in rows[:MOST_ROWS])
    return UsageWindows(feed, windows, len(rows) > MOST_ROWS, newest["window_end"] if newest else None, closed_until)


def _window(row: Mapping[str, Any]) -> UsageWindow:
    found = whole(row, *Meter, "unpriced_quantity", "late_rows")
    return UsageWindow(quantities={meter: found.pop(meter) for meter in Meter}, **found)
