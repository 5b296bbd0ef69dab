"""Lists of limits: those of the catalog, how near each account is to its own, and which thresholds were crossed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any

from jobs.queries.limits import LimitUse, limits_in_use
from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database, select

OF_VALUE = ("dimension", "dimension_value")
LIMIT_COLUMNS = (
    *("account", "plan", "meter", "currency", "model", "dimension", "dimension_value", "period", "effective_from"),
    *("quantity", "amount", "steps", "every", "code", "changed_by", "changed_at"),
)
STATUS_COLUMNS = (
    *("account", "meter", "currency", "model", "dimension", "dimension_value", "period", "period_start", "used"),
    *("other", "limit", "percent", "crossed"),
)
CHANGE_COLUMNS = (
    *("changed_at", "account", "period", "period_start", "meter", "currency", "model", "dimension"),
    *("dimension_value", "threshold", "version", "is_crossed", "used", "frontier", "rule"),
)

_LIMITS = """
    SELECT coalesce(nullif(account, ''), CASE WHEN plan = '' THEN '*' END) AS account, nullif(plan, '') AS plan,
           nullif(meter, '') AS meter, nullif(currency, '') AS currency, nullif(model, '') AS model,
           nullif(dimension, '') AS dimension, nullif(dimension_value, '') AS dimension_value, period, effective_from,
           quantity, amount,
           nullif(array_to_string(ARRAY(SELECT trim_scale(step)::text FROM unnest(steps) AS step), ', '), '') AS steps,
           trim_scale(every) AS every, nullif(code, '') AS code, changed_by, changed_at
    FROM catalog.limits
    WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
    ORDER BY limits.account, limits.plan, limits.meter, limits.currency, limits.model, limits.dimension,
             limits.dimension_value, period, effective_from
"""
# Each period is looked up by the key: for many accounts the planner would read all changes there ever were.
_CROSSED = """
    SELECT account, period, first_day, meter, currency, model, dimension, dimension_value,
           array_agg(threshold ORDER BY threshold) AS crossed
    FROM (
        SELECT DISTINCT ON (
                   changes.account, changes.period, changes.first_day, meter, currency, model, dimension,
                   dimension_value, threshold
               ) changes.*
        FROM unnest(%(accounts)s::text[], %(periods)s::text[], %(firsts)s::date[])
            AS running (account, period, first_day)
        CROSS JOIN LATERAL (
            SELECT * FROM threshold_changes AS stored
            WHERE (stored.account, stored.first_day, stored.period)
                = (running.account, running.first_day, running.period)
            OFFSET 0
        ) AS changes
        ORDER BY changes.account, changes.period, changes.first_day, meter, currency, model, dimension,
                 dimension_value, threshold, version DESC
    ) AS last WHERE is_crossed
    GROUP BY account, period, first_day, meter, currency, model, dimension, dimension_value
"""
THRESHOLD_COLUMNS = (
    *("account", "period", "period_start", "meter", "currency", "model", "dimension", "dimension_value", "threshold"),
    *("version", "is_crossed", "used", "changed_at", "frontier", "rule"),
)
THRESHOLD_KEY = (*("account", "period_start", "period", "meter", "currency", "model"), *OF_VALUE, "threshold")
"""What the states of thresholds are ordered by: no two have the same values."""
_STATES = """
    SELECT DISTINCT ON (
               account, first_day, period, changes.meter, changes.currency, changes.model, changes.dimension,
               changes.dimension_value, threshold
           )
           account, period, first_day AS period_start, nullif(meter, '') AS meter, nullif(currency, '') AS currency,
           nullif(model, '') AS model, nullif(dimension, '') AS dimension,
           nullif(dimension_value, '') AS dimension_value, threshold, version, is_crossed, used, changed_at, frontier,
           nullif(rule, '') AS rule
    FROM threshold_changes AS changes WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
    ORDER BY account, first_day, period, changes.meter, changes.currency, changes.model, changes.dimension,
             changes.dimension_value, threshold, version DESC
"""
_CHANGES = """
    SELECT changed_at, account, period, first_day AS period_start, nullif(meter, '') AS meter,
           nullif(currency, '') AS currency, nullif(model, '') AS model, nullif(dimension, '') AS dimension,
           nullif(dimension_value, '') AS dimension_value, threshold, version, is_crossed, used, frontier,
           nullif(rule, '') AS rule
    FROM threshold_changes AS changes WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
    ORDER BY changed_at DESC, account, first_day, period, meter, currency, model, changes.dimension,
             changes.dimension_value, threshold, version DESC
"""


def limit_rows(database: Database, accounts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys LIMIT_COLUMNS: the limits of the catalog, of some accounts alone or (empty) all."""
    return select(database, _LIMITS, {"accounts": list(accounts) or None})


def status_rows(database: Database, accounts: Sequence[str], now: datetime) -> Iterator[dict[str, Any]]:
    """Rows with the keys STATUS_COLUMNS: each limit in force, and the period that runs.

    `period_start` is a date, or the instant from which a period that rolls counts; null before billing has an F.
    `other` is of limits of a dimension alone: usage that is in no value, so `used` may be that much more; null: none.
    `percent` is null without a maximum, and of a limit of 0. `crossed` are the thresholds that billing recorded.
    """
    uses = list(limits_in_use(database, list(accounts) or None, None, now))
    for use, crossed in with_crossed(database, uses):
        yield {
            "account": use.account,
            "meter": use.meter or None,
            "currency": use.currency or None,
            "model": use.model or None,
            "dimension": use.dimension or None,
            "dimension_value": use.dimension_value or None,
            "period": use.period,
            "period_start": use.period_start,
            "used": use.used,
            "other": use.other or None,
            "limit": use.maximum,
            "percent": _percent(use.used, use.maximum) if use.maximum else None,
            "crossed": ", ".join(f"{step:f}" for step in crossed) or None,
        }


def _percent(used: Decimal, maximum: Decimal) -> Decimal:
    with localcontext(prec=1_000):  # Python's own 28 digits would be an error
        return round(used * 100 / maximum, 1)


def with_crossed(database: Database, uses: Sequence[LimitUse]) -> Iterator[tuple[LimitUse, Sequence[Decimal]]]:
    """Each of `uses`, and which thresholds billing has recorded as crossed in its period."""
    running = sorted({(use.account, use.period, use.first_day) for use in uses})
    parameters = {name: [row[place] for row in running] for place, name in enumerate(("accounts", "periods", "firsts"))}
    key = ("account", "period", "first_day", "meter", "currency", "model", "dimension", "dimension_value")
    rows = database.execute(_CROSSED, parameters).fetchall()
    crossed = {tuple(row[name] for name in key): row["crossed"] for row in rows}
    for use in uses:
        yield use, crossed.get(tuple(getattr(use, name) for name in key), ())


def threshold_rows(database: Database, accounts: Sequence[str], page: Page) -> Iterator[dict[str, Any]]:
    """Rows with the keys THRESHOLD_COLUMNS: the last version of each threshold that was ever crossed.

    `period_start` is ROLLING_FIRST_DAY where the period rolls: it has one state, not one for each window.
    """
    statement, more = paged(_STATES, THRESHOLD_KEY, page)
    for row in select(database, statement, {**more, "accounts": list(accounts) or None}):
        yield {**row, "period_start": row["period_start"].isoformat()}


def change_rows(database: Database, accounts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys CHANGE_COLUMNS: each time that a threshold was crossed or retracted, the newest first."""
    for row in select(database, _CHANGES, {"accounts": list(accounts) or None}):
        yield {**row, "period_start": row["period_start"].isoformat()}
