"""Bills: what each account owes for a month so far, line by line. A month is the sum of the days that belong to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from jobs.billing_progress import Database, Row
from jobs.queries.pages import Page, paged
from jobs.queries.roll_up import PARENTS
from metering.months import IN_MONTH_SQL, ZoneChange, billing_month
from metering.parents import ParentStretch, parents_of_month

LINE_KEY = ("account", "model", "meter", "currency", "first_window", "price_version")
"""What lines are ordered by."""
PAGE_KEY = ("account", "model", "meter", "currency", "price_version")
"""What pages of lines are ordered by: usage that comes between two pages moves no line to another place."""

# An account that was deleted has its months still.
_ACCOUNTS = """
    SELECT account, name,
           array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS held_from,
           array_agg(account_zones.timezone ORDER BY holds_from) AS timezones
    FROM catalog.account_zones LEFT JOIN catalog.accounts USING (account)
    GROUP BY account, name
"""
# A price version has one unit price: a line's amount is its quantity times that, multiplied once.
_LINES = f"""
    SELECT account, model, meter, currency, price_version, max(unit_price) AS unit_price,
           sum(quantity) AS quantity, sum(quantity) * max(unit_price) AS amount,
           min(first_window) AS first_window, max(last_window_end) AS last_window_end, bool_or(corrected) AS corrected
    FROM usage_days
    WHERE {IN_MONTH_SQL} AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
    GROUP BY account, model, meter, currency, price_version
    HAVING sum(quantity) <> 0
    ORDER BY {", ".join(LINE_KEY)}
"""
_TOTALS = f"""
    SELECT account, currency, sum(amount) AS amount, count(*) FILTER (WHERE amount IS NULL) AS unpriced_lines,
           bool_or(corrected) AS corrected
    FROM ({_LINES}) AS lines GROUP BY account, currency ORDER BY account, currency
"""


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
    zones: tuple[ZoneChange, ...] = ()
    """The account's time zones, of which its calendar is made."""


@dataclass(frozen=True)
class Month:
    """`lines` have LINE_KEY, `unit_price`, `quantity`, `amount`, `last_window_end` and `corrected`.

    `periods` are those of the accounts that have lines, and of all above them.
    """

    lines: Sequence[Row]
    periods: Mapping[str, Period]


def read_month(
    database: Database, month: date, accounts: Sequence[str] | None = None, page: Page | None = None
) -> Month:
    """The lines of the month that begins on `month`, a first of a month; of some accounts or (None) of all."""
    periods = read_periods(database, month)
    statement, more = paged(_LINES, PAGE_KEY, page)
    lines = database.execute(statement, {"month": month, "accounts": accounts and list(accounts), **more}).fetchall()
    used: dict[str, Period] = {}
    for line in lines:
        account: str | None = line["account"]
        while account is not None and account not in used:
            used[account] = periods.get(account) or unknown_period(month, account)
            # One that may not be seen is not named either.
            account = used[account].parent if used[account].parent in periods else None
    return Month(lines, used)


def read_periods(database: Database, month: date) -> dict[str, Period]:
    """The month of each account that the catalog knows or knew, also of those without usage."""
    rows = database.execute(_ACCOUNTS).fetchall()
    parents = _parents(month, rows, database.execute(PARENTS).fetchall())
    return {row["account"]: _period(month, **row, parent=parents.get(row["account"])) for row in rows}


def unknown_period(month: date, account: str) -> Period:
    """The month of an account that the catalog does not know: in UTC."""
    return _period(month, account, [], [])


def read_totals(database: Database, month: date, accounts: Sequence[str]) -> list[Row]:
    """What each of these accounts owes for the whole month: `account, currency, amount, unpriced_lines, corrected`.

    Each currency separately. `amount` is the exact sum of the lines that have a price; None where none has one.
    """
    return database.execute(_TOTALS, {"month": month, "accounts": list(accounts)}).fetchall()


def _parents(month: date, accounts: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The parent of each account's month that has one."""
    zones = {row["account"]: tuple(map(ZoneChange, row["held_from"], row["timezones"])) for row in accounts}
    history = {row["account"]: tuple(map(ParentStretch, row["starts"], row["ends"], row["parents"])) for row in rows}
    return parents_of_month(history, lambda account: zones.get(account, ()), month)


def _period(
    month: date, account: str, held_from: Sequence[datetime | None], timezones: Sequence[str], **known: str | None
) -> Period:
    """The account's month that begins on `month`; in UTC where its time zone is unknown."""
    zones = tuple(map(ZoneChange, held_from, timezones))
    found = billing_month(zones, month)
    return Period(account, known.get("name"), found.zone.key, found.start, found.end, known.get("parent"), zones)
