"""Forecasts: what each account will owe for a month, and by how much the same forecast was off in months before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import groupby
from typing import Any

from jobs.billing_progress import Database as Snapshot
from jobs.billing_progress import billing_progress
from jobs.queries.bills import Period, read_periods, read_totals, unknown_period
from jobs.queries.plan_fees import read_plan_months
from jobs.queries.reading import Database, select
from metering.digits import EXACT
from metering.forecast import RECENT, Rate, error_percent, forecast, mean_percent

MONTHS_MEASURED = 3
"""Months before, in which the forecast is measured."""
COLUMNS = (
    *("account", "name", "currency", "month_start", "month_end", "known_until", "so_far", "forecast"),
    *("error_percent", "months_measured"),
)
DAY, NOTHING = timedelta(days=1), Decimal(0)

# A month that is billed as a whole has no rate.
_EXTRAPOLATED = "meter NOT IN (SELECT meter FROM meters WHERE period = 'month')"
_RATES = f"""
    SELECT account, currency, sum(amount) AS amount, min(first_window) AS since FROM usage_days
    WHERE day > %(first)s::date AND amount IS NOT NULL AND {_EXTRAPOLATED}
    GROUP BY account, currency
"""
_DAYS = f"""
    SELECT account, currency, day, coalesce(sum(amount) FILTER (WHERE {_EXTRAPOLATED}), 0) AS extrapolated,
           coalesce(sum(amount) FILTER (WHERE NOT {_EXTRAPOLATED}), 0) AS whole,
           min(first_window) FILTER (WHERE {_EXTRAPOLATED} AND amount IS NOT NULL) AS since,
           bool_or(amount IS NULL AND quantity <> 0) AS has_tiers
    FROM usage_days
    WHERE day >= %(first)s::date AND day < %(end)s::date AND (amount IS NOT NULL OR price_version > 0)
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
    GROUP BY account, currency, day ORDER BY account, currency, day
"""


def read_rates(database: Snapshot, known_until: datetime) -> dict[tuple[str, str | None], Rate]:
    """The rate of each account in each currency as of `known_until`, from its days of the last two weeks."""
    rows = database.execute(_RATES, {"first": (known_until - RECENT).astimezone(UTC).date()}).fetchall()
    return {(row["account"], row["currency"]): Rate(row["amount"], row["since"]) for row in rows}


def forecast_rows(database: Database, month: date, accounts: Sequence[str], now: datetime) -> Iterator[dict[str, Any]]:
    """Rows with the keys COLUMNS for each account and currency with usage in the month that begins on `month`.

    It is of usage: what plans cost beside it is in no forecast. `forecast` is null until the account has an hour of
    usage, and before the end of a month in which it has prices with tiers or packages, or a plan that includes units:
    no rate says what these will cost. Such months measure no error either. `error_percent` is the mean, over
    `months_measured` months, of the errors of the same forecast on the same day of the month; null where there is none.
    Usage is known until billing's frontier (before there is one: `now`).
    """
    known_until = billing_progress(database)[0] or now
    months = [month]
    for _ in range(MONTHS_MEASURED):
        months.append((months[-1] - DAY).replace(day=1))
    calendar = _Calendar({first: read_periods(database, first, accounts or None) for first in months})
    included = {
        (account, currency, first)
        for first in months
        for account, _, currency, *_ in read_plan_months(
            database, first, partial(calendar.known.__getitem__, first), accounts or None
        ).included
    }
    end = _following(month)
    parameters = {"first": months[-1] - RECENT, "end": end, "accounts": list(accounts) or None}
    rows = select(database, _DAYS, parameters)
    for (account, currency), found in groupby(rows, key=lambda row: (row["account"], row["currency"])):
        days = _Days({row["day"]: row for row in found})
        if not days.has_usage(month, end):
            continue
        period = calendar.period(account, month)
        elapsed = max(0, (min(known_until, period.end) - period.start) // DAY)
        errors = [
            error
            for before in months[1:]
            if not days.has_tiers(before, _following(before))
            and (account, currency, before) not in included
            and (error := _error(days, before, calendar.period(account, before), elapsed)) is not None
        ]
        so_far = EXACT.add(*days.sums(month, end))
        rate = days.rate((known_until - RECENT).astimezone(UTC).date(), date.max)
        sums = so_far, forecast(so_far, rate, known_until, period.end)
        if days.has_tiers(month, end) or (account, currency, month) in included:
            billed = _billed(database, month, account, currency)
            sums = billed, billed if known_until >= period.end else None
        yield {
            "account": account,
            "name": period.name,
            "currency": currency,
            "month_start": period.start,
            "month_end": period.end,
            "known_until": known_until,
            "so_far": sums[0],
            "forecast": sums[1],
            "error_percent": mean_percent(errors),
            "months_measured": len(errors),
        }


def _following(month: date) -> date:
    return (month + 31 * DAY).replace(day=1)


def _billed(database: Database, month: date, account: str, currency: str | None) -> Decimal:
    """What the usage of the month comes to, with its tiers."""
    totals = read_totals(database, month, [account], with_fees=False)
    return next((row["amount"] for row in totals if row["currency"] == currency), None) or NOTHING


@dataclass(frozen=True)
class _Calendar:
    """The months that are read, of each account."""

    known: Mapping[date, Mapping[str, Period]]
    unknown: dict[date, Period] = field(default_factory=dict)

    def period(self, account: str, month: date) -> Period:
        found = self.known[month].get(account) or self.unknown.get(month)
        if found is None:
            found = self.unknown[month] = unknown_period(month, account)
        return found


@dataclass(frozen=True)
class _Days:
    """An account's days in one currency: `extrapolated` amounts, and those of months that are billed as a `whole`."""

    rows: Mapping[date, Mapping[str, Any]]

    def has_usage(self, first: date, end: date) -> bool:
        return any(first <= day < end for day in self.rows)

    def has_tiers(self, first: date, end: date) -> bool:
        """Whether usage from `first` to before `end` is priced by the total of its month."""
        return any(row["has_tiers"] for day, row in self.rows.items() if first <= day < end)

    def sums(self, first: date, end: date) -> tuple[Decimal, Decimal]:
        """What the days cost from `first` to before `end`: extrapolated, and as a whole."""
        extrapolated, whole = NOTHING, NOTHING
        for day, row in self.rows.items():
            if first <= day < end:
                extrapolated, whole = EXACT.add(extrapolated, row["extrapolated"]), EXACT.add(whole, row["whole"])
        return extrapolated, whole

    def rate(self, after: date, end: date) -> Rate | None:
        """That of the days after `after` and before `end`."""
        recent = {day: row for day, row in self.rows.items() if after < day < end and row["since"]}
        if not recent:
            return None
        return Rate(self.sums(min(recent), end)[0], recent[min(recent)]["since"])


def _error(days: _Days, month: date, period: Period, elapsed: int) -> Decimal | None:
    """Of the forecast of a month that is over, made `elapsed` days after it began; None where there was none."""
    today, end = month + elapsed * DAY, _following(month)
    actual, _ = days.sums(month, end)
    so_far, _ = days.sums(month, min(today, end))
    expected = forecast(so_far, days.rate(today - RECENT - DAY, today), period.start + elapsed * DAY, period.end)
    return None if expected is None or not elapsed or today >= end else error_percent(expected, actual)
