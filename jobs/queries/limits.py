"""Limits of the catalog, and how much of each was used in the day or month that runs: by the account's own calendar."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from jobs.billing_progress import Row
from jobs.queries.account_periods import running_periods
from jobs.queries.bills import read_usage_totals
from jobs.queries.periods import Window
from jobs.queries.reading import Database, select

EVERY_ACCOUNT = "*"
"""The account of a limit that each account has."""
LIMIT_COLUMNS = (
    *("account", "plan", "meter", "currency", "period", "effective_from", "quantity", "amount", "steps"),
    *("changed_by", "changed_at"),
)
STATUS_COLUMNS = ("account", "meter", "currency", "period", "period_start", "used", "limit", "percent", "crossed")
CHANGE_COLUMNS = (
    *("changed_at", "account", "period", "period_start", "meter", "currency", "threshold", "version", "is_crossed"),
    *("used", "frontier"),
)

_ACCOUNTS = """
    SELECT account, name, effective_from, changed_at, now() AS read_at FROM catalog.account_history
    WHERE account = ANY (%(accounts)s) AND holds_from <= now() AND holds_until > now()
"""
# The account's own, else its plan's, else that of each account: as billing decides thresholds (`jobs.billing`).
_IN_FORCE = """
    SELECT DISTINCT ON (held.account, meter, limits.currency, period)
           held.account, meter, limits.currency, period, coalesce(quantity, amount) AS maximum, steps
    FROM catalog.account_history AS held
    JOIN catalog.limits ON limits.account = held.account OR limits.account = '' AND limits.plan IN ('', held.plan)
    WHERE (%(accounts)s::text[] IS NULL OR held.account = ANY (%(accounts)s))
      AND holds_from <= now() AND holds_until > now() AND limits.effective_from <= now()
      AND (%(meters)s::text[] IS NULL OR meter = '' OR meter = ANY (%(meters)s))
    ORDER BY held.account, meter, limits.currency, period, (limits.account <> '') DESC, (limits.plan <> '') DESC,
             limits.effective_from DESC
"""
_USED = """
    SELECT account, meter, period, sum(quantity) AS used
    FROM unnest(%(held)s::text[], %(periods)s::text[], %(firsts)s::date[]) AS running (account, period, first)
    CROSS JOIN LATERAL (
        SELECT meter, quantity FROM usage_days
        WHERE usage_days.account = running.account AND day = first AND period = 'P1D'
        UNION ALL
        SELECT meter, quantity FROM usage_months
        WHERE usage_months.account = running.account AND month = first AND period = 'P1M'
        OFFSET 0
    ) AS used
    WHERE meter = ANY (%(meters)s)
    GROUP BY account, meter, period
"""
_LIMITS = """
    SELECT coalesce(nullif(account, ''), CASE WHEN plan = '' THEN '*' END) AS account, nullif(plan, '') AS plan,
           nullif(meter, '') AS meter, nullif(currency, '') AS currency, period, effective_from, quantity, amount,
           nullif(array_to_string(ARRAY(SELECT trim_scale(step)::text FROM unnest(steps) AS step), ', '), '') AS steps,
           changed_by, changed_at
    FROM catalog.limits
    WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
    ORDER BY limits.account, limits.plan, limits.meter, limits.currency, period, effective_from
"""
_CROSSED = """
    SELECT account, period, first_day, meter, currency, array_agg(threshold ORDER BY threshold) AS crossed
    FROM (
        SELECT DISTINCT ON (account, period, first_day, meter, currency, threshold) changes.*
        FROM unnest(%(accounts)s::text[], %(periods)s::text[], %(firsts)s::date[])
            AS running (account, period, first_day)
        JOIN threshold_changes AS changes USING (account, period, first_day)
        ORDER BY account, period, first_day, meter, currency, threshold, version DESC
    ) AS last WHERE is_crossed GROUP BY account, period, first_day, meter, currency
"""
_CHANGES = """
    SELECT changed_at, account, period, first_day AS period_start, nullif(meter, '') AS meter,
           nullif(currency, '') AS currency, threshold, version, is_crossed, used, frontier
    FROM threshold_changes WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
    ORDER BY changed_at DESC, account, first_day, period, meter, currency, threshold, version DESC
"""


@dataclass(frozen=True)
class LimitUse:
    """Of a limit in force: how much may be used in the period that runs, and how much was.

    It is of a `meter`, or (then that is empty) of money in a `currency`. `maximum` None: it has steps alone.
    """

    account: str
    meter: str
    currency: str
    period: str
    first_day: date
    maximum: Decimal | None
    used: Decimal


def accounts_now(database: Database, accounts: Sequence[str]) -> list[Row]:
    """Those that there are: `account, name, effective_from, changed_at`, and `read_at`, the transaction's instant."""
    return database.execute(_ACCOUNTS, {"accounts": list(accounts)}).fetchall()


def limits_in_use(
    database: Database, accounts: Sequence[str] | None, meters: Sequence[str] | None, now: datetime
) -> Iterator[LimitUse]:
    """Each limit in force of these accounts, of money and of these meters; None: of all.

    A limit of the account replaces that of its plan, and this that of each account, for the meter or currency and
    period. Money is what usage cost in the month: with tiers and packages, without the fees of plans.
    """
    places = {
        "accounts": None if accounts is None else list(accounts),
        "meters": None if meters is None else list(meters),
    }
    limits = [
        row for row in database.execute(_IN_FORCE, places).fetchall() if row["maximum"] is not None or row["steps"]
    ]
    held = sorted({(row["account"], Window(row["period"])) for row in limits})
    running = running_periods(database, held, now)
    parameters = {
        "meters": sorted({row["meter"] for row in limits}),
        "held": [account for account, _ in held],
        "periods": [window.value for _, window in held],
        "firsts": [running[place].first for place in held],
    }
    used = {
        (row["account"], row["meter"], "", row["period"]): row["used"]
        for row in database.execute(_USED, parameters).fetchall()
    }
    months = defaultdict(list)
    for row in limits:
        if row["currency"]:
            months[running[row["account"], Window.MONTH].first].append(row["account"])
    for month, spending in months.items():
        for total in read_usage_totals(database, month, spending):
            used[total["account"], "", total["currency"], Window.MONTH.value] = total["amount"]
    for row in limits:
        place = row["account"], row["meter"], row["currency"], row["period"]
        first_day = running[row["account"], Window(row["period"])].first
        yield LimitUse(*place, first_day, row["maximum"], used.get(place) or Decimal(0))


def limit_rows(database: Database, accounts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys LIMIT_COLUMNS: the limits of the catalog, of some accounts alone or (empty) all."""
    return select(database, _LIMITS, {"accounts": list(accounts) or None})


def status_rows(database: Database, accounts: Sequence[str], now: datetime) -> Iterator[dict[str, Any]]:
    """Rows with the keys STATUS_COLUMNS: each limit in force, and the period that runs.

    `percent` is null without a maximum, and of a limit of 0. `crossed` are the thresholds that billing recorded.
    """
    uses = list(limits_in_use(database, list(accounts) or None, None, now))
    running = sorted({(use.account, use.period, use.first_day) for use in uses})
    parameters = {name: [row[place] for row in running] for place, name in enumerate(("accounts", "periods", "firsts"))}
    key = ("account", "period", "first_day", "meter", "currency")
    crossed = {tuple(row[name] for name in key): row for row in database.execute(_CROSSED, parameters).fetchall()}
    for use in uses:
        row = crossed.get((use.account, use.period, use.first_day, use.meter, use.currency))
        yield {
            "account": use.account,
            "meter": use.meter or None,
            "currency": use.currency or None,
            "period": use.period,
            "period_start": use.first_day.isoformat(),
            "used": use.used,
            "limit": use.maximum,
            "percent": round(use.used * 100 / use.maximum, 1) if use.maximum else None,
            "crossed": ", ".join(f"{step:f}" for step in row["crossed"]) if row else None,
        }


def change_rows(database: Database, accounts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys CHANGE_COLUMNS: each time that a threshold was crossed or retracted, the newest first."""
    for row in select(database, _CHANGES, {"accounts": list(accounts) or None}):
        yield {**row, "period_start": row["period_start"].isoformat()}
