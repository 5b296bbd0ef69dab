"""Limits of the catalog, and how much of each was used in the day or month that runs: by the account's own calendar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from jobs.billing_progress import Row
from jobs.queries.account_periods import running_periods
from jobs.queries.periods import Window
from jobs.queries.reading import Database

_ACCOUNTS = """
    SELECT account, name, effective_from, changed_at, now() AS read_at FROM catalog.account_history
    WHERE account = ANY (%(accounts)s) AND holds_from <= now() AND holds_until > now()
"""
_IN_FORCE = """
    SELECT DISTINCT ON (held.account, meter, period) held.account, meter, period, quantity
    FROM catalog.account_history AS held
    JOIN catalog.limits ON limits.account = held.account OR limits.plan = held.plan
    WHERE held.account = ANY (%(accounts)s) AND holds_from <= now() AND holds_until > now()
      AND limits.effective_from <= now() AND meter = ANY (%(meters)s)
    ORDER BY held.account, meter, period, (limits.account <> '') DESC, limits.effective_from DESC
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


@dataclass(frozen=True)
class LimitUse:
    """Of a limit in force: how much may be used in the period that runs, and how much was."""

    account: str
    meter: str
    period: str
    quantity: Decimal
    used: Decimal


def accounts_now(database: Database, accounts: Sequence[str]) -> list[Row]:
    """Those that there are: `account, name, effective_from, changed_at`, and `read_at`, the transaction's instant."""
    return database.execute(_ACCOUNTS, {"accounts": list(accounts)}).fetchall()


def limits_in_use(
    database: Database, accounts: Sequence[str], meters: Sequence[str], now: datetime
) -> Iterator[LimitUse]:
    """Each limit in force; a limit of the account replaces that of its plan for the meter and period."""
    places = {"accounts": list(accounts), "meters": list(meters)}
    limits = [row for row in database.execute(_IN_FORCE, places).fetchall() if row["quantity"] is not None]
    held = sorted({(row["account"], Window(row["period"])) for row in limits})
    running = running_periods(database, held, now)
    parameters = {
        "meters": list(meters),
        "held": [account for account, _ in held],
        "periods": [window.value for _, window in held],
        "firsts": [running[place].first for place in held],
    }
    used = {
        (row["account"], row["meter"], row["period"]): row["used"]
        for row in database.execute(_USED, parameters).fetchall()
    }
    for row in limits:
        place = row["account"], row["meter"], row["period"]
        yield LimitUse(*place, row["quantity"], used.get(place, Decimal(0)))
