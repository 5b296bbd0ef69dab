"""Limits of the catalog, and how much of each was used: in the account's running day or month, or the last hours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from jobs.billing_progress import Row
from jobs.queries.account_periods import running_periods
from jobs.queries.bills import read_meter_amounts
from jobs.queries.periods import Window
from jobs.queries.reading import Database
from metering.digits import EXACT
from metering.instants import rfc3339
from metering.limits import MAX_MULTIPLES, ROLLING_FIRST_DAY, rolling_hours, rolling_start

EVERY_ACCOUNT = "*"
"""The account of a limit that each account has."""

_ACCOUNTS = """
    SELECT account, name, effective_from, changed_at, now() AS read_at FROM catalog.account_history
    WHERE account = ANY (%(accounts)s) AND holds_from <= now() AND holds_until > now()
"""
# The account's own, else its plan's, else that of each account: as billing decides thresholds (`jobs.billing`).
_IN_FORCE = """
    WITH held AS (
        SELECT account, plan FROM catalog.account_history
        WHERE (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
          AND holds_from <= now() AND holds_until > now()
    ), begun AS (
        SELECT account, plan, meter, currency, model, dimension, dimension_value, period, effective_from,
               coalesce(quantity, amount) AS maximum, steps, every
        FROM catalog.limits
        WHERE effective_from <= now() AND (%(meters)s::text[] IS NULL OR meter = '' OR meter = ANY (%(meters)s))
          AND (dimension = '' OR %(dimensions)s::text[] IS NULL OR (dimension, dimension_value) IN (
              SELECT * FROM unnest(%(dimensions)s::text[], %(values)s::text[])
          ))
    ), found (
        account, place, of_account, of_plan, meter, currency, model, dimension, dimension_value, period,
        effective_from, maximum, steps, every
    ) AS (
        SELECT held.account, 1 AS place, begun.* FROM held JOIN begun USING (account)
        UNION ALL SELECT held.account, 2, begun.* FROM held JOIN begun USING (plan) WHERE plan <> ''
        UNION ALL SELECT held.account, 3, begun.* FROM held JOIN begun ON begun.account = '' AND begun.plan = ''
    ), last AS (
        SELECT DISTINCT ON (account, meter, currency, model, dimension, dimension_value, period)
               account, meter, currency, model, dimension, dimension_value, period, maximum, steps, every
        FROM found
        ORDER BY account, meter, currency, model, dimension, dimension_value, period, place, effective_from DESC
    )
    SELECT * FROM last WHERE maximum IS NOT NULL OR steps <> '{}' OR every IS NOT NULL
    ORDER BY account, meter, currency, model, dimension, dimension_value, period LIMIT %(limit)s
"""
_USED = """
    SELECT account, meter, coalesce(model, '') AS model, period, sum(quantity) AS used
    FROM unnest(%(held)s::text[], %(periods)s::text[], %(firsts)s::date[], %(starts)s::timestamptz[])
        AS running (account, period, first, starts)
    CROSS JOIN LATERAL (
        SELECT meter, model, quantity FROM usage_days
        WHERE usage_days.account = running.account AND day = first AND period = 'P1D'
        UNION ALL
        SELECT meter, model, quantity FROM usage_months
        WHERE usage_months.account = running.account AND month = first AND period = 'P1M'
        UNION ALL
        SELECT meter, model, quantity FROM usage_hours
        WHERE usage_hours.account = running.account AND hour >= starts
        OFFSET 0
    ) AS used
    WHERE meter = ANY (%(meters)s)
    -- Of all models, and of each that has a name.
    GROUP BY GROUPING SETS ((account, meter, period), (account, meter, period, model))
    HAVING GROUPING(model) = 1 OR model <> ''
"""
_RUNNING = """
    WITH running AS (
        SELECT * FROM unnest(%(held)s::text[], %(periods)s::text[], %(firsts)s::date[])
            AS running (account, period, first_day) WHERE period IN ('P1D', 'P1M')
    ), named AS (
        SELECT * FROM unnest(%(meters)s::text[], %(dimensions)s::text[], %(values)s::text[])
            AS named (meter, dimension, value)
    )
"""
_BY_VALUE = """
    SELECT account, period, meter, dimension, value, coalesce(model, '') AS model, sum(quantity) AS used
    FROM ({rows}) AS found JOIN named USING (meter, dimension, value)
    GROUP BY GROUPING SETS (
        (account, period, meter, dimension, value), (account, period, meter, dimension, value, model)
    )
    HAVING GROUPING(model) = 1 OR model <> ''
"""
_SUMMED = _RUNNING + _BY_VALUE.format(
    rows="SELECT * FROM running JOIN usage_dimensions USING (account, period, first_day)"
)
# Billing sums what limits name with its next fold after they are declared; until then days are added up here. Each row
# is split once, not once for each limit (OFFSET 0).
_UNSUMMED = f"{_RUNNING} TABLE named EXCEPT TABLE limited_dimensions"
_OF_DAYS = _RUNNING + _BY_VALUE.format(
    rows="""
        SELECT * FROM running JOIN usage_days USING (account) CROSS JOIN LATERAL (
            SELECT key AS dimension, value FROM jsonb_each_text(dimensions)
            UNION ALL SELECT '', '' WHERE is_other
        ) AS of_value
        WHERE day >= first_day AND day < CASE period WHEN 'P1D' THEN first_day + 1
                                                     ELSE (first_day + interval '1 month')::date END
        OFFSET 0
    """
)
_FRONTIER = "SELECT frontier FROM closed_usage"
# A limit may be asked for, and ended, also when its dimension is configured no more.
_DIMENSIONS = (
    "SELECT dimension FROM declared_dimensions UNION SELECT dimension FROM catalog.limits WHERE dimension <> ''"
)


@dataclass(frozen=True)
class LimitUse:
    """Of a limit in force: how much may be used in the period that runs, and how much was.

    A period of the calendar has a `first_day`. One that rolls (`rolling_hours`) has ROLLING_FIRST_DAY, and counts from
    `window_start` on (`rolling_start`); None: billing has no F yet, so nothing counts.

    It is of a `meter`, and with a `model` of that alone, with a `dimension` of its one value; or (then these two are
    empty) of money in a `currency`, of all usage or of one `meter`. `maximum` None: it has steps alone. `steps`:
    thresholds before or above it. `every`: its first MAX_MULTIPLES multiples are thresholds, too. `other`: of a limit
    of a dimension, the usage of the meter that is in no value, because its day has more than 10,000 combinations:
    `used` may be that much more.
    """

    account: str
    meter: str
    currency: str
    model: str
    period: str
    first_day: date
    maximum: Decimal | None
    used: Decimal
    steps: tuple[Decimal, ...] = ()
    every: Decimal | None = None
    window_start: datetime | None = None
    dimension: str = ""
    dimension_value: str = ""
    other: Decimal = Decimal(0)

    @property
    def period_start(self) -> str | None:
        """A date, or the instant from which a period that rolls counts, as ISO 8601."""
        if rolling_hours(self.period) is None:
            return self.first_day.isoformat()
        return None if self.window_start is None else rfc3339(self.window_start)

    @property
    def thresholds(self) -> list[Decimal]:
        """The steps, the limit, and the multiples of `every` that `used` is between, in order.

        A limit of 0 is none: nothing reaches it.
        """
        return sorted({*self.steps, *([self.maximum] if self.maximum else []), *self._multiples()})

    def _multiples(self) -> Iterator[Decimal]:
        if self.every is None:
            return
        # The total is compared before it is divided: a quotient of more digits than a Decimal has raises.
        if self.used >= EXACT.multiply(self.every, MAX_MULTIPLES):
            reached = MAX_MULTIPLES
        else:
            reached = int(self.used // self.every) if self.used > 0 else 0
        turns = (reached, min(reached + 1, MAX_MULTIPLES))
        yield from (EXACT.multiply(self.every, turn) for turn in turns if turn)


class TooManyLimits(Exception):
    """More limits are in force than were asked for."""


def accounts_now(database: Database, accounts: Sequence[str]) -> list[Row]:
    """Those that there are: `account, name, effective_from, changed_at`, and `read_at`, the transaction's instant."""
    return database.execute(_ACCOUNTS, {"accounts": list(accounts)}).fetchall()


def dimensions_of_limits(database: Database) -> set[str]:
    """Those that a limit may be of: the configured ones, and those of the limits that there are."""
    return {row["dimension"] for row in database.execute(_DIMENSIONS).fetchall()}


def limits_in_use(
    database: Database,
    accounts: Sequence[str] | None,
    meters: Sequence[str] | None,
    now: datetime,
    max_limits: int | None = None,
    *,
    values: Collection[tuple[str, str]] | None = None,
) -> Iterator[LimitUse]:
    """Each limit in force of these accounts, of money and of these meters; None: of all.

    Of limits of a dimension those of these `values`, (dimension, value); None: all. A plan may limit thousands.

    Raises TooManyLimits where that is more than `max_limits`, before it reads what was used.

    A limit of the account replaces that of its plan, and this that of each account, for the meter, currency, model,
    value of a dimension, and period. Money is what usage cost in the month: with tiers and packages, without the fees
    of plans.
    """
    places = {
        "accounts": None if accounts is None else list(accounts),
        "meters": None if meters is None else list(meters),
        "limit": None if max_limits is None else max_limits + 1,
        "dimensions": None if values is None else [dimension for dimension, _ in values],
        "values": None if values is None else [value for _, value in values],
    }
    limits = database.execute(_IN_FORCE, places).fetchall()
    if max_limits is not None and len(limits) > max_limits:
        raise TooManyLimits
    held = sorted({(row["account"], row["period"]) for row in limits})
    running = _running(database, held, now)
    parameters = {
        "meters": sorted({row["meter"] for row in limits if not row["dimension"]}),
        "held": [account for account, _ in held],
        "periods": [period for _, period in held],
        "firsts": [running[place][0] for place in held],
        "starts": [running[place][1] for place in held],
    }
    used = {
        (row["account"], row["meter"], "", row["model"], row["period"]): row["used"]
        for row in database.execute(_USED, parameters).fetchall()
    }
    of_values = _used_of_dimensions(database, limits, parameters)
    months = defaultdict(list)
    for row in limits:
        if row["currency"]:
            months[running[row["account"], Window.MONTH.value][0]].append(row["account"])
    for month, spending in months.items():
        for (account, currency, meter), amount in read_meter_amounts(database, month, spending).items():
            used[account, meter, currency, "", Window.MONTH.value] = amount
    for row in limits:
        place = row["account"], row["meter"], row["currency"], row["model"], row["period"]
        first_day, start = running[row["account"], row["period"]]
        of_period = LimitUse(*place, first_day, row["maximum"], Decimal(0), tuple(row["steps"]), row["every"], start)
        dimension, value = row["dimension"], row["dimension_value"]
        if dimension:
            of_value = of_values.get((*place, dimension, value)) or Decimal(0)
            other = of_values.get((*place, "", "")) or Decimal(0)
            yield replace(of_period, used=of_value, dimension=dimension, dimension_value=value, other=other)
        else:
            yield replace(of_period, used=used.get(place) or Decimal(0))


def _used_of_dimensions(
    database: Database, limits: Sequence[Row], parameters: Mapping[str, Sequence[Any]]
) -> dict[tuple[str, ...], Decimal]:
    """By the fields of a limit before `first_day`, and dimension and value; with empty ones what is in no value."""
    named = {(row["meter"], row["dimension"], row["dimension_value"]) for row in limits if row["dimension"]}
    if not named:
        return {}
    named |= {(meter, "", "") for meter, _, _ in named}
    new = database.execute(_UNSUMMED, {**parameters, **_columns(named)}).fetchall()
    unsummed = {(row["meter"], row["dimension"], row["value"]) for row in new}
    rows = database.execute(_SUMMED, {**parameters, **_columns(named - unsummed)}).fetchall()
    if unsummed:
        rows += database.execute(_OF_DAYS, {**parameters, **_columns(unsummed)}).fetchall()
    return {
        (row["account"], row["meter"], "", row["model"], row["period"], row["dimension"], row["value"]): row["used"]
        for row in rows
    }


def _columns(named: Collection[tuple[str, str, str]]) -> dict[str, list[str]]:
    return {name: [row[place] for row in named] for place, name in enumerate(("meters", "dimensions", "values"))}


def _running(
    database: Database, held: Sequence[tuple[str, str]], now: datetime
) -> dict[tuple[str, str], tuple[date, datetime | None]]:
    """Of each account and period: its first day now, or from when on it counts at F, as billing decides thresholds."""
    of_calendar = [(account, Window(period)) for account, period in held if rolling_hours(period) is None]
    found: dict[tuple[str, str], tuple[date, datetime | None]] = {
        (account, window.value): (period.first, None)
        for (account, window), period in running_periods(database, of_calendar, now).items()
    }
    if len(found) < len(held):
        row = database.execute(_FRONTIER).fetchone()
        frontier = None if row is None else row["frontier"]
        for account, period in held:
            if hours := rolling_hours(period):
                found[account, period] = ROLLING_FIRST_DAY, rolling_start(hours, frontier)
    return found
