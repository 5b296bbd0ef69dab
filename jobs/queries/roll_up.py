"""Whose bill an account's usage is part of, month by month: by the parent when the month began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from jobs.queries.periods import Window
from jobs.queries.reading import Database
from metering.months import ZoneChange
from metering.parents import Calendar, History, ParentStretch, above, months_of_change, parents_of_month

PARENTS = """
    SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS starts,
           array_agg(nullif(holds_until, 'infinity') ORDER BY holds_from) AS ends,
           array_agg(parent ORDER BY holds_from) AS parents
    FROM catalog.account_history
    WHERE account IN (SELECT account FROM catalog.account_history WHERE parent IS NOT NULL) GROUP BY account
"""
"""Of each account that ever had a parent: `starts`, `ends` and `parents` of its stretches."""
_ZONES = """
    SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS starts,
           array_agg(timezone ORDER BY holds_from) AS zones
    FROM catalog.account_zones GROUP BY account
"""


@dataclass(frozen=True)
class Part:
    """In the months from `first` to before `end` the usage of `member` is part of that of `head`."""

    member: str
    head: str
    first: date
    end: date


def parts_of(history: History, calendar: Calendar, accounts: Sequence[str]) -> list[Part]:
    """Each of `accounts` with all below it; without any, all that have a parent, below the topmost one.

    Of one pair the parts are in order, and do not meet.
    """
    changes = months_of_change(history)
    parts = {(account, account): [Part(account, account, date.min, date.max)] for account in accounts}
    for first, end in zip([date.min, *changes], [*changes, date.max], strict=True):
        # Before the first change all months are alike.
        month = first if first > date.min else _month_before(end)
        parents = parents_of_month(history, calendar, month)
        for member in parents:
            line = above(member, parents)
            for head in [name for name in line if name in accounts] if accounts else line[-1:]:
                found = parts.setdefault((member, head), [])
                begins = found.pop().first if found and found[-1].end == first else first
                found.append(Part(member, head, begins, end))
    return [part for found in parts.values() for part in found]


def read_parts(database: Database, accounts: Sequence[str], zone: str | None) -> list[Part]:
    """`parts_of` what the database has, by the calendar of a time zone; None: by each account's own.

    A parent that the reader may not see counts as none: its name is hidden too.
    """
    zones = {row["account"]: tuple(map(ZoneChange, row["starts"], row["zones"])) for row in database.execute(_ZONES)}
    history = {
        row["account"]: tuple(
            ParentStretch(start, end, parent if parent in zones else None)
            for start, end, parent in zip(row["starts"], row["ends"], row["parents"], strict=True)
        )
        for row in database.execute(PARENTS)
    }
    if zone is not None:
        changes = (ZoneChange(None, zone),)
        return parts_of(history, lambda _: changes, accounts)
    return parts_of(history, lambda account: zones.get(account, ()), accounts)


def part_parameters(parts: Sequence[Part]) -> dict[str, Any]:
    """The parameters of `JOINED`."""
    return {
        "members": [part.member for part in parts],
        "heads": [part.head for part in parts],
        "part_firsts": [part.first for part in parts],
        "part_ends": [part.end for part in parts],
    }


JOINED = """
    {join} JOIN unnest(%(members)s::text[], %(heads)s::text[], %(part_firsts)s::date[], %(part_ends)s::date[])
        AS part (member, head, first_month, end_month)
        ON member = account AND {month} >= first_month AND {month} < end_month
"""


def month_sql(window: Window) -> str:
    """The SQL expression for the month of a `window_key`, as a first local date; it uses the parameter `zone`."""
    if window in (Window.MINUTE, Window.HOUR):
        return "date_trunc('month', window_key AT TIME ZONE %(zone)s)::date"
    return "date_trunc('month', window_key)::date"


def _month_before(month: date) -> date:
    return date(1970, 1, 1) if month == date.max else (month - timedelta(days=1)).replace(day=1)
