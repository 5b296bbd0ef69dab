"""An account's month by one dimension: the usage of each API key, user or other configured text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial

from dashboard.backend import Backend
from dashboard.exact import Quantity, with_plain
from dashboard.queries.meters import meters_of
from jobs.queries.bills import read_periods
from jobs.queries.plan_fees import read_plan_months
from metering.months import IN_MONTH_SQL

MAX_VALUES = 1_000


@dataclass(frozen=True)
class Value:
    """Usage in one currency with one `value` of a dimension; None: it had none. `is_other`: of values without a row.

    `amount` is None where no price matched any of it. What `tiered` costs depends on the total of all values, and is
    not in it.
    """

    value: str | None
    is_other: bool
    currency: str | None
    amount: Decimal | None
    requests: Quantity
    tokens: Quantity
    unpriced: Quantity
    tiered: Quantity


@dataclass(frozen=True)
class Values:
    """At most MAX_VALUES, those of the largest amounts first; `is_cut` where there are more.

    `has_included`: the account's plan includes units in the month, which `amount` has at their price.
    """

    values: tuple[Value, ...]
    is_cut: bool
    has_included: bool = False


_DIMENSIONS = "SELECT config -> 'dimensions' AS names FROM jobs WHERE job = 'billing'"

_VALUES = f"""
    SELECT dimensions ->> %(dimension)s AS value, is_other, currency, sum(amount) AS amount,
           coalesce(sum(quantity) FILTER (WHERE meter = ANY (%(requests)s)), 0) AS requests,
           coalesce(sum(quantity) FILTER (WHERE meter = ANY (%(tokens)s)), 0) AS tokens,
           coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0) AS unpriced,
           coalesce(sum(quantity) FILTER (WHERE price_version > 0 AND unit_price IS NULL), 0) AS tiered
    FROM usage_days
    WHERE account = %(account)s AND {IN_MONTH_SQL}
    GROUP BY 1, 2, 3
    HAVING bool_or(quantity <> 0)
    ORDER BY amount DESC NULLS LAST, is_other, value, currency
    LIMIT %(limit)s
"""


def read_dimensions(backend: Backend) -> tuple[str, ...]:
    """The dimensions that are configured now."""
    with backend.snapshot() as cursor:
        row = cursor.execute(_DIMENSIONS).fetchone()
    return tuple(row["names"] or ()) if row else ()


def read_values(backend: Backend, account: str, month: date, dimension: str) -> Values:
    """The sums of an account's days in the month that begins on `month`, by the values of `dimension`."""
    with backend.snapshot() as cursor:
        meters = meters_of(cursor)
        periods = partial(read_periods, cursor, month, [account])
        has_included = bool(read_plan_months(cursor, month, periods, [account]).included)
        rows = cursor.execute(
            _VALUES,
            {
                "dimension": dimension,
                "account": account,
                "month": month,
                "requests": list(meters.requests),
                "tokens": list(meters.tokens),
                "limit": MAX_VALUES + 1,
            },
        ).fetchall()
    values = tuple(Value(**with_plain(row, "requests", "tokens", "unpriced", "tiered")) for row in rows[:MAX_VALUES])
    return Values(values, is_cut=len(rows) > MAX_VALUES, has_included=has_included)
