"""The days that usage is billed on: found where its row has none, and compared with their minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from jobs.explain.arithmetic import Entry, Row, WindowKey
from jobs.explain.database import Stored
from metering.digits import plain
from metering.vocabulary import UsageCause

NEAR = timedelta(days=3)
"""Days further apart do not overlap in any zone."""


def placed(stored: Stored, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The same, each on the day that it is billed on.

    Release 0.1.0 wrote no day. What was billed before there were days got one by the account's zone then, what was
    billed since got UTC's: of several that can hold its minute, a row of the stream is of the former.
    """
    entries = tuple(entries)
    minutes = {(entry.window.window_start, entry.window.account) for entry in entries if not entry.has_day}
    holding: defaultdict[tuple[Any, ...], list[date]] = defaultdict(list)
    for row in stored.days_holding(minutes) if minutes else ():
        holding[tuple(row[name] for name in (*WindowKey._fields, "price_version"))].append(row["day"])
    days = (
        entry.day if entry.has_day else _day(entry, holding[*entry.window, entry.price_version]) for entry in entries
    )
    return tuple(
        entry if entry.day == day else replace(entry, day=day) for entry, day in zip(entries, days, strict=True)
    )


def _day(entry: Entry, days: Sequence[date]) -> date:
    other = [day for day in days if day != entry.day]
    if other and (entry.cause == UsageCause.STREAM or entry.day not in days):
        return other[0]
    return entry.day


@dataclass(frozen=True)
class Span:
    """Days whose minutes lie between these instants, and which hold all that lie there."""

    days: tuple[date, ...]
    starts: datetime
    ends: datetime


def span_of_month(stored: Stored, account: str, month: date) -> Span | None:
    """The days of an account's month, with those that overlap with any or lie between two; None: it has none."""
    following = (month + timedelta(days=31)).replace(day=1)
    spans = _spans(stored.spans(account, month - NEAR, following + NEAR))
    mine = [number for number, span in enumerate(spans) if any(month <= day < following for day in span.days)]
    if not mine:
        return None
    whole = spans[mine[0] : mine[-1] + 1]
    return Span(tuple(day for span in whole for day in span.days), whole[0].starts, whole[-1].ends)


def wrong_days(stored: Stored, entries: Iterable[Entry]) -> list[str]:
    """Where a day that the entries are billed on is not the sum of its minutes, as sentences."""
    meters: defaultdict[tuple[str, date], set[str]] = defaultdict(set)
    for entry in entries:
        if entry.counts:
            meters[entry.window.account, entry.day].add(entry.window.meter)
    return [
        f"{account} {day}, {row['model']} {row['meter']} {row['currency']}, price version {row['price_version']}: the "
        f"minutes make {plain(row['quantity'])} for {plain(row['amount'])}, the line has "
        f"{plain(row['day_quantity'])} for {plain(row['day_amount'])}"
        for (account, day), names in sorted(meters.items())
        for span in _spans(stored.spans(account, day - NEAR, day + NEAR))
        if day in span.days
        for row in stored.unequal_days(account, span.days, span.starts, span.ends, names)
    ]


def _spans(rows: Iterable[Row]) -> list[Span]:
    """Days (`day, starts, ends`) in the order of their starts: overlapping ones are one span."""
    spans: list[Span] = []
    for row in rows:
        if spans and row["starts"] < spans[-1].ends:
            last = spans.pop()
            spans.append(Span((*last.days, row["day"]), last.starts, max(last.ends, row["ends"])))
        else:
            spans.append(Span((row["day"],), row["starts"], row["ends"]))
    return spans
