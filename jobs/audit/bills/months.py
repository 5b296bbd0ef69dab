"""I12: the month of a usage row, by its `day`, is the month that readers show for the account.

joins takes days from the versions of accounts in Delta, readers take borders from `catalog.account_zones`: both by
`metering.months`, and both must have the same history. Usage that was decided before a zone was known keeps its day.
That is no fault: every reader sums its days.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import psycopg
import pyarrow as pa

from jobs.audit.compare.columns import Wrong
from jobs.joins.billing_days import zone_versions
from metering.months import ZoneChange, billing_month, zone_changes

Calendar = Sequence[ZoneChange]


@dataclass(frozen=True)
class BilledMonth:
    """All windows that an account's days of a `month` (its first day) have lie in `[starts, ends)`."""

    account: str
    month: date
    starts: datetime
    ends: datetime


@dataclass(frozen=True)
class Months:
    """What is billed, and the calendars that readers cut months by; an account without one has UTC's."""

    billed: Sequence[BilledMonth]
    calendars: Mapping[str, Calendar]


_BILLED = """
SELECT account, date_trunc('month', day)::date, min(first_window), max(last_window_end)
FROM usage_days
WHERE quantity <> 0 AND (%(since)s::date IS NULL OR day >= %(since)s) AND (%(until)s::date IS NULL OR day < %(until)s)
GROUP BY 1, 2 ORDER BY 1, 2
"""
_CALENDARS = """
SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from), array_agg(timezone ORDER BY holds_from)
FROM catalog.account_zones GROUP BY account
"""


def stored_months(connection: psycopg.Connection[Any], since: date | None, until: date | None) -> Months:
    """What the database has of the days from `since` and before `until`, within the caller's transaction."""
    billed = connection.execute(_BILLED, {"since": since, "until": until}).fetchall()
    zones = connection.execute(_CALENDARS).fetchall()
    return Months(
        [BilledMonth(*row) for row in billed],
        {account: tuple(map(ZoneChange, begins, names)) for account, begins, names in zones},
    )


def wrong_months(stored: Months, accounts: pa.Table) -> Wrong:
    """The months that are not the readers', beside all versions of accounts (streams.ACCOUNTS) that joins has."""
    shown = stored.calendars
    outside = [month for month in stored.billed if not _is_within(month, [shown.get(month.account, ())])]
    known = _prefixes(accounts, {month.account for month in outside})
    sentences = (_sentence(month, shown.get(month.account, ()), known.get(month.account, [()])) for month in outside)
    wrong = [sentence for sentence in sentences if sentence]
    return Wrong(len(stored.billed), len(wrong), next(iter(wrong), ""))


def _is_within(billed: BilledMonth, calendars: Sequence[Calendar]) -> bool:
    """Whether all of its windows lie in the months that these calendars call so."""
    months = [billing_month(calendar, billed.month) for calendar in calendars]
    return min(month.start for month in months) <= billed.starts and billed.ends <= max(month.end for month in months)


def _prefixes(accounts: pa.Table, names: set[str]) -> dict[str, list[Calendar]]:
    """The calendars that joins had of each account one after the other: first none, last that of now."""
    versions: dict[str, list[tuple[datetime, str]]] = {}
    known: dict[str, list[Calendar]] = {}
    for account, begins, zone in _rows(accounts, names):
        versions.setdefault(account, []).append((begins, zone))
        calendars = known.setdefault(account, [()])
        if (calendar := zone_changes(versions[account])) != calendars[-1]:
            calendars.append(calendar)
    return known


def _rows(accounts: pa.Table, names: set[str]) -> Iterator[tuple[Any, ...]]:
    rows = zone_versions(accounts).select("account", "holds_from", "zone")
    return rows.filter(rows["account"].is_in(sorted(names))).iter_rows()


def _sentence(billed: BilledMonth, shown: Calendar, known: Sequence[Calendar]) -> str:
    """What is wrong; nothing where joins has the readers' calendar by now, and had named these days by one before."""
    (of_readers, of_joins) = (_shown(calendar, billed.month) for calendar in (shown, known[-1]))
    place = f"{billed.account} {billed.month:%Y-%m}"
    if of_readers != of_joins:
        return f"{place} is {of_readers} to readers, and {of_joins} to joins"
    if _is_within(billed, known):
        return ""
    return f"{place} has usage {_between(billed.starts, billed.ends)}, and is {of_readers}"


def _shown(calendar: Calendar, month: date) -> str:
    found = billing_month(calendar, month)
    return _between(found.start, found.end)


def _between(start: datetime, end: datetime) -> str:
    return f"from {start:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"
