"""The usage windows of the last hour, per account or model, and how final they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dashboard.backend import Backend
from dashboard.exact import Quantity, plain, with_plain
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.meters import Meters, meters_of
from metering.lateness import WINDOW_STATE_SQL
from metering.vocabulary import Job

MAX_ROWS = 1_000
"""A page with more rows is useless and slows down every browser."""


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

    `quantities` has the meters with usage in it. `amount` is None where no price matched: that is not 0. What
    `tiered_quantity` costs depends on the month's total, and is not in it.
    """

    window_start: datetime
    window_end: datetime
    key: str | None
    currency: str | None
    state: str
    quantities: Mapping[str, Quantity]
    amount: Decimal | None
    unpriced_quantity: Quantity
    tiered_quantity: Quantity
    late_rows: int


@dataclass(frozen=True)
class UsageWindows:
    """Newest first. `newest` is the end of the newest window with usage there ever was; None: there never was any.

    Windows that end at `closed_until` or before are closed; None while that is unknown.
    """

    feed: Feed
    meters: Meters
    windows: tuple[UsageWindow, ...]
    is_cut: bool
    newest: datetime | None
    closed_until: datetime | None


_CLOSED = "SELECT closed_until FROM closed_usage"
_NEWEST = "SELECT window_end FROM usage_windows ORDER BY window_start DESC LIMIT 1"

_WINDOWS = """
    SELECT window_start, window_end, {key} AS key, currency, {state} AS state, sum(amount) AS amount,
           coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0) AS unpriced_quantity,
           coalesce(sum(quantity) FILTER (WHERE price_version > 0 AND unit_price IS NULL), 0) AS tiered_quantity
    FROM usage_windows
    WHERE window_start > %(since)s AND (%(account)s::text IS NULL OR account = %(account)s)
    GROUP BY window_start, window_end, {key}, currency
    HAVING bool_or(quantity <> 0)
    ORDER BY window_start DESC, {key}, currency
    LIMIT %(limit)s
"""

# By itself: above, the limit ends the reading as soon as there are rows enough.
_BY_METER = """
    SELECT window_start, {key} AS key, currency, meter, sum(quantity) AS quantity, sum(late_rows) AS late_rows
    FROM usage_windows
    WHERE window_start >= %(oldest)s AND (%(account)s::text IS NULL OR account = %(account)s)
    GROUP BY window_start, {key}, currency, meter
"""


def read_windows(backend: Backend, chosen: WindowFilter) -> UsageWindows:
    """The windows that began in the last hours before what billing has folded (before now, when it never ran)."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        meters = meters_of(cursor)
        newest = cursor.execute(_NEWEST).fetchone()
        closed = cursor.execute(_CLOSED).fetchone()
        closed_until = closed["closed_until"] if closed else None
        parameters = {
            "frontier": feed.frontier,
            "closed_until": closed_until,
            "since": (feed.frontier or feed.read_at) - timedelta(hours=chosen.hours),
            "account": chosen.account,
            "limit": MAX_ROWS + 1,
        }
        state = WINDOW_STATE_SQL.format(corrected="bool_or(corrected)", closed_until="%(closed_until)s")
        rows = cursor.execute(_WINDOWS.format(key=chosen.by.value, state=state), parameters).fetchall()
        shown = rows[:MAX_ROWS]
        oldest = {**parameters, "oldest": shown[-1]["window_start"] if shown else None}
        by_meter = cursor.execute(_BY_METER.format(key=chosen.by.value), oldest).fetchall()
    used: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in by_meter:
        used[_key(row)].append(row)
    return UsageWindows(
        feed=feed,
        meters=meters,
        windows=tuple(_window(row, used[_key(row)]) for row in shown),
        is_cut=len(rows) > MAX_ROWS,
        newest=newest["window_end"] if newest else None,
        closed_until=closed_until,
    )


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["window_start"], row["key"], row["currency"]


def _window(row: Mapping[str, Any], by_meter: Sequence[Mapping[str, Any]]) -> UsageWindow:
    return UsageWindow(
        **with_plain(row, "unpriced_quantity", "tiered_quantity"),
        quantities={row["meter"]: plain(row["quantity"]) for row in by_meter if row["quantity"]},
        # A late row counts in each meter that it has a quantity of: one that counts outcomes has them all.
        late_rows=max(int(row["late_rows"]) for row in by_meter),
    )
