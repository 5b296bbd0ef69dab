"""The requests of each account by the hour, over the last day: what a sparkline beside its bill shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard.backend import Backend
from dashboard.exact import Quantity, plain
from dashboard.queries.meters import meters_of

HOUR = timedelta(hours=1)
HOURS = 24
MAX_SPARKLINES = 1_000

_REQUESTS = """
    SELECT account, currency, sum(quantity) AS requests,
           array_agg((extract(epoch FROM hour - %(start)s) / 3600)::int) AS places,
           array_agg(quantity::float8) AS by_hour
    FROM (
        SELECT account, currency, hour, sum(quantity) AS quantity FROM usage_hours
        WHERE hour >= %(start)s AND hour < %(end)s AND meter = ANY (%(meters)s)
        GROUP BY account, currency, hour
    ) AS hours
    GROUP BY account, currency
    ORDER BY requests DESC, account, currency
    LIMIT %(limit)s
"""


@dataclass(frozen=True)
class DayOfRequests:
    """The total of HOURS hours of UTC, and each of them, oldest first: to be drawn, so floats will do."""

    total: Quantity
    by_hour: tuple[float, ...]


NONE = DayOfRequests(0, (0.0,) * HOURS)


@dataclass(frozen=True)
class HourlyRequests:
    """By account and currency, of at most MAX_SPARKLINES with the most requests; `is_cut` where there are more."""

    days: Mapping[tuple[str, str | None], DayOfRequests]
    is_cut: bool

    def of(self, account: str, currency: str | None) -> DayOfRequests | None:
        """None where it is not known, since there are too many accounts."""
        return self.days.get((account, currency), None if self.is_cut else NONE)


def read_hourly_requests(backend: Backend, now: datetime) -> HourlyRequests:
    """The hour of UTC that `now` is in, and those before it."""
    end = now.replace(minute=0, second=0, microsecond=0) + HOUR
    with backend.snapshot() as cursor:
        meters = list(meters_of(cursor).requests)
        parameters = {"start": end - HOURS * HOUR, "end": end, "meters": meters, "limit": MAX_SPARKLINES + 1}
        rows = cursor.execute(_REQUESTS, parameters).fetchall()
    days = {}
    for row in rows[:MAX_SPARKLINES]:
        by_hour = dict(zip(row["places"], row["by_hour"], strict=True))
        shape = tuple(by_hour.get(place, 0.0) for place in range(HOURS))
        days[row["account"], row["currency"]] = DayOfRequests(plain(row["requests"]), shape)
    return HourlyRequests(days, is_cut=len(rows) > MAX_SPARKLINES)
