"""Limits that an event, the catalog and a table share."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from metering.instants import EPOCH

MAX_NAME_BYTES = 512
"""Of a name, in UTF-8. A longer one would not fit a Postgres index (2,704 bytes for a whole key), and one bad event or
change of the catalog would stop a job."""
MAX_TAGS = 50
MAX_TAG_NAME_BYTES = 64
MAX_TAG_BYTES = 256
"""Of an account's tags: how many, and of each its name and its text."""
CALENDAR_PERIODS = {"P1D": "day", "P1M": "month"}
"""Of limits on usage, of the account's calendar, each with its word for people. Others roll (`rolling_hours`)."""
MIN_ROLLING_HOURS = 2
MAX_ROLLING_HOURS = 168
"""Of a limit whose period rolls. An hour would hold nothing but what came since the last full hour; and a decision adds
up as many hours, of each account in a batch."""
ROLLING_PERIODS = {f"PT{hours}H": hours for hours in range(MIN_ROLLING_HOURS, MAX_ROLLING_HOURS + 1)}
ROLLING_FIRST_DAY = date(1970, 1, 1)
"""Stored where a period that rolls has no first day: its threshold has one state, not one for each window."""
MAX_MULTIPLES = 100
"""Of a limit that recurs: how many of its thresholds one period has. A quantity sent in a wrong unit, or a step of one
token, would call somebody a million times."""
PLAIN_NAME = r"[a-z][a-z0-9_]{0,62}"
"""Of a column, a meter, a unit: what people declare, and what every database and label takes as it is."""
_HOUR = timedelta(hours=1)


def rolling_hours(period: str) -> int | None:
    """How many hours a period that rolls has; None for one of the calendar, and for no period of limits."""
    return ROLLING_PERIODS.get(period)


def rolling_start(hours: int, frontier: datetime | None) -> datetime | None:
    """From when on usage counts at F: the window of so many whole hours of UTC that holds F and began first.

    None before there is an F: then nothing counts.
    """
    if frontier is None:
        return None
    return frontier - (frontier - EPOCH) % _HOUR - (hours - 1) * _HOUR


def period_words(period: str) -> str:
    """A limit's period for people: day, month, or last 24 hours. One that a later release made: as it is."""
    hours = rolling_hours(period)
    return f"last {hours} hours" if hours else CALENDAR_PERIODS.get(period, period)
