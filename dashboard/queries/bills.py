"""Bills: what each account owes for a month so far, line by line, and the windows behind a line.

A month is the sum of the account's days that belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from dashboard.backend import Backend
from dashboard.exact import Quantity, with_plain
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.meters import Meters, meters_of
from metering.months import IN_MONTH_SQL, ZoneChange, billing_month
from metering.parents import ParentStretch, parents_of_month
from metering.vocabulary import Job

MAX_WINDOWS = 1_000
MONTH = "month"
"""The `whole_period` of meters that bill a month as a whole."""


@dataclass(frozen=True)
class Line:
    """What one model's meter adds at one price; one of it is a `unit`. `amount` is None for usage without a price.

    `whole_period`: the period (`day`, `month`) that is billed as a whole; None: it is billed by the minute.
    """

    account: str
    model: str | None
    meter: str
    unit: str
    currency: str | None
    price_version: int | None
    quantity: Quantity
    amount: Decimal | None
    first_window: datetime
    last_window_end: datetime
    whole_period: str | None = None


@dataclass(frozen=True)
class Period:
    """An account's month: `[start, end)` in UTC. `name` is None for an account the catalog does not know.

    Usage from before the account's zone was known is on days of UTC, and may lie outside (I12 of `weir audit`).
    """

    account: str
    name: str | None
    timezone: str
    start: datetime
    end: datetime
    parent: str | None = None
    """Whose bill it is part of: the parent that the account had when the month began."""


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


@dataclass(frozen=True)
class LineWindow:
    """One minute of a line."""

    window_start: datetime
    quantity: Quantity
    amount: Decimal | None
    late_quantity: Quantity
    corrected: bool


# An account that was deleted has its months still.
_ACCOUNTS = """
    SELECT account, name,
           array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS held_from,
           array_agg(account_zones.timezone ORDER BY holds_from) AS timezones
    FROM catalog.account_zones LEFT JOIN catalog.accounts USING (account)
    GROUP BY account, name
"""

_PARENTS = """
    SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS starts,
           array_agg(nullif(holds_until, 'infinity') ORDER BY holds_from) AS ends,
           array_agg(parent ORDER BY holds_from) AS parents
    FROM catalog.account_history
    WHERE account IN (SELECT account FROM catalog.account_history WHERE parent IS NOT NULL) GROUP BY account
"""

# A price version has one unit price: a line's amount is its quantity times that, multiplied once.
_LINES = f"""
    SELECT account, model, meter, currency, price_version,
           sum(quantity) AS quantity, sum(quantity) * max(unit_price) AS amount,
           min(first_window) AS first_window, max(last_window_end) AS last_window_end
    FROM usage_days WHERE {IN_MONTH_SQL}
    GROUP BY account, model, meter, currency, price_version
    HAVING sum(quantity) <> 0
    ORDER BY account, model, meter, currency, first_window, price_version
"""

_NEWEST = "SELECT window_end FROM usage_windows ORDER BY window_start DESC LIMIT 1"

_WINDOWS = """
    SELECT window_start, quantity, amount, late_quantity, corrected FROM usage_windows
    WHERE account = %(account)s AND window_start >= %(start)s AND window_start < %(end)s
      AND model IS NOT DISTINCT FROM %(model)s AND meter = %(meter)s
      AND currency IS NOT DISTINCT FROM %(currency)s AND price_version IS NOT DISTINCT FROM %(price_version)s
    ORDER BY window_start DESC LIMIT %(limit)s
"""


def read_bills(backend: Backend, month: date) -> Bills:
    """The lines of every account for the month that begins on `month`, a first of a month."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        meters = meters_of(cursor)
        accounts = cursor.execute(_ACCOUNTS).fetchall()
        parents = _parents(month, accounts, cursor.execute(_PARENTS).fetchall())
        known = [_period(month, **row, parent=parents.get(row["account"])) for row in accounts]
        general = _period(month, "", [], [])
        rows = cursor.execute(_LINES, {"month": month}).fetchall()
        newest = cursor.execute(_NEWEST).fetchone()
    lines = tuple(
        Line(
            **with_plain(row, "quantity"),
            unit=meters.unit(row["meter"]),
            whole_period=meters.whole_period(row["meter"]),
        )
        for row in rows
    )
    periods = {period.account: period for period in known}
    used: dict[str, Period] = {}
    for line in lines:
        account: str | None = line.account
        while account is not None and account not in used:
            used[account] = periods.get(account) or replace(general, account=account)
            # One that may not be seen is not named either.
            account = used[account].parent if used[account].parent in periods else None
    return Bills(feed, month, used, lines, meters, newest["window_end"] if newest else None)


def _parents(month: date, accounts: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The parent of each account's month that has one."""
    zones = {row["account"]: tuple(map(ZoneChange, row["held_from"], row["timezones"])) for row in accounts}
    history = {row["account"]: tuple(map(ParentStretch, row["starts"], row["ends"], row["parents"])) for row in rows}
    return parents_of_month(history, lambda account: zones.get(account, ()), month)


def _period(
    month: date, account: str, held_from: Sequence[datetime | None], timezones: Sequence[str], **known: str | None
) -> Period:
    """The account's month that begins on `month`; in UTC where its time zone is unknown."""
    found = billing_month([ZoneChange(*change) for change in zip(held_from, timezones, strict=True)], month)
    return Period(account, known.get("name"), found.zone.key, found.start, found.end, known.get("parent"))


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
                "start": line.first_window,
                "end": line.last_window_end,
                "limit": MAX_WINDOWS,
            },
        ).fetchall()
    return tuple(LineWindow(**with_plain(row, "quantity", "late_quantity")) for row in rows)
