"""Whose bill an account's month belongs to: that of the parent that the account has when the month begins.

So an account that changes its parent, or is deleted, within a month stays on one bill until that month ends. An account
that is created (again) within a month belongs to the bill of the parent that it is created with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from metering.months import FIRST_WALKED, LAST_WALKED, Month, ZoneChange, billing_month

Calendar = Callable[[str], Sequence[ZoneChange]]
"""The time zones of an account, by which its months begin."""
ZONES_APART = timedelta(days=2)
"""Of an instant's dates in any two zones, and more."""


@dataclass(frozen=True)
class ParentStretch:
    """An account has a parent (None: has none) in `[holds_from, holds_until)`.

    An instant that is None is the beginning of time, or its end.
    """

    holds_from: datetime | None
    holds_until: datetime | None
    parent: str | None


History = Mapping[str, Sequence[ParentStretch]]
"""By account; its stretches are in order and do not overlap, and between them it is deleted."""


def parents_of_month(history: History, calendar: Calendar, month: date) -> dict[str, str]:
    """The parents of the accounts' months that begin on `month`, a first of a month, for accounts that have one.

    No account is its own ancestor: where months of different zones make a cycle, its first account by name has no
    parent.
    """
    months: dict[tuple[ZoneChange, ...], Month] = {}
    parents: dict[str, str] = {}
    for account, stretches in history.items():
        zones = tuple(calendar(account))
        if zones not in months:
            months[zones] = billing_month(zones, month)
        if (parent := _parent(stretches, months[zones])) is not None:
            parents[account] = parent
    for account in sorted(parents):
        if account in above(account, parents):
            del parents[account]
    return parents


def _parent(stretches: Sequence[ParentStretch], month: Month) -> str | None:
    """Of the first stretch that the month has a part of."""
    for stretch in stretches:
        if stretch.holds_until is None or month.start < stretch.holds_until:
            return stretch.parent if stretch.holds_from is None or stretch.holds_from < month.end else None
    return None


def above(account: str, parents: Mapping[str, str]) -> list[str]:
    """Its parent, the parent of that, and so on; of a circle each once."""
    found: list[str] = []
    while (parent := parents.get(found[-1] if found else account)) is not None and parent not in found:
        found.append(parent)
    return found


def months_of_change(history: History) -> list[date]:
    """Between two of these months that follow each other no month has other parents than the earlier one, in any zone.

    Nor has any before the first. Not each of them changes something.
    """
    instants = {
        # Nothing is used before or after, and no calendar reaches further than its first and last days.
        min(max(instant, FIRST_WALKED), LAST_WALKED)
        for stretches in history.values()
        for stretch in stretches
        for instant in (stretch.holds_from, stretch.holds_until)
        if instant is not None
    }
    near = {(instant + apart).date().replace(day=1) for instant in instants for apart in (-ZONES_APART, ZONES_APART)}
    return sorted(near | {(month + timedelta(days=31)).replace(day=1) for month in near})
