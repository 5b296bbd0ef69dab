"""Bills: what each account owes for a month so far, line by line, and the windows behind a line.

A month is the sum of the account's days that belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import psycopg

from dashboard.backend import Backend
from dashboard.exact import Quantity, with_plain
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.meters import Meters, meters_of
from jobs.queries.bills import Period as Period  # noqa: PLC0414  # pages that show bills import it from here
from jobs.queries.bills import read_month
from jobs.queries.forecasts import read_rates
from jobs.queries.plan_fees import Charged, exactly
from metering.forecast import Rate
from metering.invoices import FEES
from metering.price_tiers import Kind
from metering.vocabulary import Job

MAX_WINDOWS = 1_000
BY_TOTAL = frozenset(Kind) - {Kind.UNIT}
"""Kinds of prices with tiers or packages."""


@dataclass(frozen=True)
class Line:
    """What one model's meter adds at one price; one of it is a `unit`. `amount` is None for usage without a price.

    Where a price has tiers or packages (`kind`), a line is of one `tier`, its `model` is what the price is for, and
    `next_unit_price` estimates what another unit would add. What a plan costs beside its usage (`kind` of FEES) has no
    model and no meter: `tier` is the plan, and `quantity` its days. `whole_period`: the period (`day`, `month`) that is
    billed as a whole; None: it is billed by the minute. `pooled`: the tiers are of a total that the account shares.
    """

    account: str
    model: str | None
    meter: str | None
    unit: str
    currency: str | None
    price_version: int | None
    quantity: Quantity
    amount: Decimal | None
    first_window: datetime
    last_window_end: datetime
    whole_period: str | None = None
    kind: str | None = None
    tier: str | None = None
    next_unit_price: Decimal | None = None
    pooled: bool = False

    @property
    def is_tiered(self) -> bool:
        """Whether the month's total prices it, over all models of the price."""
        return self.kind in BY_TOTAL

    @property
    def is_fee(self) -> bool:
        """Whether it is what a plan costs beside its usage."""
        return self.kind in FEES


@dataclass(frozen=True)
class Bills:
    """All lines of a month, by account, model, meter and price, and the period of every account that has one."""

    feed: Feed
    month: date
    periods: dict[str, Period]
    """Of those that have usage, and of all above them."""
    lines: tuple[Line, ...]
    meters: Meters
    newest: datetime | None
    rates: Mapping[tuple[str, str | None], Rate] = field(default_factory=dict)
    """By account and currency."""


@dataclass(frozen=True)
class LineWindow:
    """One minute of a line."""

    window_start: datetime
    quantity: Quantity
    amount: Decimal | None
    late_quantity: Quantity
    corrected: bool


_NEWEST = "SELECT window_end FROM usage_windows ORDER BY window_start DESC LIMIT 1"

_WINDOWS = """
    SELECT window_start, quantity, amount, late_quantity, corrected FROM usage_windows
    WHERE account = %(account)s AND window_start >= %(start)s AND window_start < %(end)s
      AND (%(is_tiered)s OR model IS NOT DISTINCT FROM %(model)s) AND meter = %(meter)s
      AND currency IS NOT DISTINCT FROM %(currency)s AND price_version IS NOT DISTINCT FROM %(price_version)s
    ORDER BY window_start DESC LIMIT %(limit)s
"""


def read_bills(backend: Backend, month: date) -> Bills:
    """The lines of every account for the month that begins on `month`, a first of a month."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        meters = meters_of(cursor)
        found = read_month(cursor, month)
        newest = cursor.execute(_NEWEST).fetchone()
        rates = read_rates(cursor, feed.frontier or feed.read_at)
    lines = tuple(_line(row, meters) for row in found.lines)
    return Bills(feed, month, dict(found.periods), lines, meters, newest["window_end"] if newest else None, rates)


def account_lines(
    cursor: psycopg.Cursor[dict[str, Any]], month: date, account: str, meters: Meters, charged: Charged = exactly
) -> tuple[Line, ...]:
    """The lines of one account for a month, as the caller's transaction sees them; `charged` as in `read_month`."""
    return tuple(_line(row, meters) for row in read_month(cursor, month, [account], charged=charged).lines)


def _line(row: Mapping[str, Any], meters: Meters) -> Line:
    shown = {name: value for name, value in row.items() if name not in ("unit_price", "corrected")}
    unit, whole_period = "day", None
    if row["meter"] is not None:
        unit, whole_period = meters.unit(row["meter"]), meters.whole_period(row["meter"])
    return Line(**with_plain(shown, "quantity"), unit=unit, whole_period=whole_period)


def read_line_windows(backend: Backend, line: Line) -> tuple[LineWindow, ...]:
    """The minutes of a line, newest first, at most MAX_WINDOWS.

    Of usage that was decided before its account's zone was known, days of two months may share minutes: they are shown
    with both.
    """
    with backend.snapshot() as cursor:
        rows = cursor.execute(
            _WINDOWS,
            {
                **{name: getattr(line, name) for name in ("account", "model", "meter", "currency", "price_version")},
                "is_tiered": line.is_tiered,
                "start": line.first_window,
                "end": line.last_window_end,
                "limit": MAX_WINDOWS,
            },
        ).fetchall()
    return tuple(LineWindow(**with_plain(row, "quantity", "late_quantity")) for row in rows)
