"""Thresholds of the catalog's limits: which day or month of an account has reached which, in billing's transaction.

What is crossed is a function of the total of the day or month and of the catalog, and where the period rolls of F
(`jobs.billing.rolling`), never of the order of usage: it is the same after any cut, restart and replay. How often it
was crossed and retracted on the way is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.billing.dimensions import decide_later, follow_limits
from jobs.billing.rolling import add_rolling, is_moved
from jobs.billing.staged import IS_BILLED
from jobs.queries.account_periods import ALWAYS_UTC, Calendar, periods
from jobs.queries.bills import read_meter_amounts
from jobs.queries.periods import Window
from jobs.runtime.job import Fold
from metering.limits import CALENDAR_PERIODS, MAX_MULTIPLES
from metering.months import ZoneChange

_IS_DUE = "SELECT EXISTS (SELECT FROM thresholds_due WHERE due_at <= now())"
# The last limit may have been removed while a batch was folded: what it named is summed until the next one.
_HAS_LIMITS = """
SELECT EXISTS (SELECT FROM catalog.limits) OR EXISTS (SELECT FROM thresholds_due WHERE due_at <= now())
    OR EXISTS (SELECT FROM limited_dimensions)
"""
# A row that is added from here on stays, and is decided with the next fold.
_TAKE_DUE = """
DELETE FROM thresholds_due WHERE due_at <= now() RETURNING account, plan, greatest(since, '1970-01-01Z') AS since
"""
BATCH_ACCOUNTS = 2_000
"""Accounts whose money is computed at once: tiers are priced here, and Postgres ends a session that is idle for ten
seconds within its transaction."""
VERSIONS_OF_AN_EPOCH = 1_000_000
"""A driver changes no threshold more often. Each later one begins above, also after the database was lost or restored:
its epoch is above those of all before, which are known beside the tables as well."""

# The fold removes them from `staged` once their periods are in `usage_days`.
_MEMBERS = """
CREATE TEMP TABLE member_days ON COMMIT DROP AS
SELECT DISTINCT account, day FROM staged WHERE aggregation IS NOT NULL
"""
# A row for each account, day and meter, once the fold has decided about stragglers: `staged` has one for each minute,
# model and price, which is read once.
_TOUCHED = f"""
CREATE TEMP TABLE touched_meters ON COMMIT DROP AS
SELECT account, day, meter, max(window_start) AS last_window FROM staged
WHERE {IS_BILLED} AND metered_rows > 0 GROUP BY account, day, meter
"""
# Those that this batch changes. And of accounts whose limits, plan or zone changed each that may count under a limit
# and each that was decided, if it may end after the change: no day of an account's calendar ends three days after that
# of UTC begins, and no month 34 days after.
_SLACK = "CASE period WHEN 'P1D' THEN 3 ELSE 34 END"
_PERIODS = f"""
CREATE TEMP TABLE threshold_periods ON COMMIT DROP AS
WITH limited AS (
    SELECT period, min(effective_from AT TIME ZONE 'UTC')::date - {_SLACK} AS first FROM catalog.limits GROUP BY period
), named AS (
    SELECT * FROM unnest(%(due_accounts)s::text[], %(due_plans)s::text[], %(due_since)s::timestamptz[])
        AS named (account, plan, since)
), due AS (
    SELECT account, period, min(since AT TIME ZONE 'UTC')::date - {_SLACK} AS first
    FROM (
        SELECT account, since FROM named WHERE account <> ''
        UNION ALL
        SELECT history.account, since FROM named JOIN catalog.account_history AS history USING (plan) WHERE plan <> ''
    ) AS due CROSS JOIN unnest('{{P1D,P1M}}'::text[]) AS period GROUP BY account, period
), due_all AS (
    SELECT period, min(since AT TIME ZONE 'UTC')::date - {_SLACK} AS first
    FROM named CROSS JOIN unnest('{{P1D,P1M}}'::text[]) AS period WHERE account = '' AND plan = '' GROUP BY period
), touched AS (
    SELECT account, day FROM touched_meters
    UNION
    SELECT account, day FROM member_days
), found AS (
    SELECT account, 'P1D' AS period, day AS first_day FROM touched
    UNION
    SELECT account, 'P1M', date_trunc('month', day::timestamp)::date FROM touched
    UNION
    -- Usage of one member of a pool is another share of its tiers for all.
    SELECT other.account, 'P1M', month
    FROM (SELECT account, date_trunc('month', day::timestamp)::date AS month FROM touched) AS used
    JOIN catalog.pools AS own USING (account) JOIN catalog.pools AS other USING (parent)
    WHERE own.first_month <= month AND (own.end_month IS NULL OR own.end_month > month)
      AND other.first_month <= month AND (other.end_month IS NULL OR other.end_month > month)
    UNION
    SELECT account, period, month FROM due JOIN usage_months USING (account) WHERE period = 'P1M' AND month >= first
    UNION
    SELECT account, period, month FROM due_all JOIN usage_months ON month >= first WHERE period = 'P1M'
    UNION
    SELECT account, period, day FROM due JOIN usage_days USING (account) WHERE period = 'P1D' AND day >= first
    UNION
    SELECT account, period, day FROM due_all JOIN usage_days ON day >= first WHERE period = 'P1D'
), every AS (
    SELECT account, period, first_day FROM found JOIN limited USING (period) WHERE first_day >= first
    UNION
    SELECT account, period, first_day FROM due JOIN threshold_changes USING (account, period) WHERE first_day >= first
    UNION
    SELECT account, period, first_day FROM due_all JOIN threshold_changes USING (period) WHERE first_day >= first
)
SELECT every.*, held_from, timezones, dense_rank() OVER (ORDER BY held_from, timezones) AS calendar
FROM every LEFT JOIN (
    SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS held_from,
           array_agg(timezone ORDER BY holds_from) AS timezones
    FROM catalog.account_zones WHERE account IN (SELECT account FROM every) GROUP BY account
) AS zones USING (account)
"""
_CALENDARS = "SELECT DISTINCT calendar, held_from, timezones, period, first_day FROM threshold_periods"

# Of one meter, currency or both, model, value of a dimension and period: the account's own, else its plan's, else that
# of each account; of its versions the last that began before the period ended. The plan is the last of the period, too.
# Limits of a dimension are found from the values that the account has used, each by the index (OFFSET 0): somebody may
# limit thousands of values.
_IN_FORCE = """
CREATE TEMP TABLE thresholds_in_force ON COMMIT DROP AS
WITH placed AS (
    SELECT account, touched.period, touched.first_day, ends.until, (
               SELECT plan FROM catalog.account_history AS held
               WHERE held.account = touched.account AND holds_from < ends.until ORDER BY holds_from DESC LIMIT 1
           ) AS plan
    FROM threshold_periods AS touched JOIN (
        SELECT calendar, period, first_day, least(ends_at, now() + interval '1 microsecond') AS until
        -- A period that rolls has no end.
        FROM unnest(%(calendars)s::bigint[], %(periods)s::text[], %(first_days)s::date[], %(ends)s::timestamptz[])
            AS given (calendar, period, first_day, ends_at)
    ) AS ends USING (calendar, period, first_day)
), found AS (
    SELECT placed.account, placed.period, first_day, meter, currency, model, dimension, dimension_value, 1 AS place,
           effective_from, coalesce(quantity, amount) AS maximum, steps, every, code
    FROM placed JOIN catalog.limits ON (limits.account, limits.period) = (placed.account, placed.period)
    WHERE limits.account <> '' AND dimension = '' AND effective_from < until
    UNION ALL
    SELECT placed.account, placed.period, first_day, meter, currency, model, dimension, dimension_value, 2,
           effective_from, coalesce(quantity, amount), steps, every, code
    FROM placed JOIN catalog.limits ON (limits.plan, limits.period) = (placed.plan, placed.period)
    WHERE limits.plan <> '' AND dimension = '' AND effective_from < until
    UNION ALL
    SELECT placed.account, placed.period, first_day, meter, currency, model, dimension, dimension_value, 3,
           effective_from, coalesce(quantity, amount), steps, every, code
    FROM placed JOIN catalog.limits ON limits.period = placed.period
    WHERE limits.account = '' AND limits.plan = '' AND dimension = '' AND effective_from < until
    UNION ALL
    SELECT placed.account, placed.period, first_day, limited.meter, currency, model, limited.dimension,
           dimension_value, place, effective_from, quantity, steps, every, code
    FROM placed CROSS JOIN LATERAL (
        SELECT DISTINCT meter, dimension, value FROM usage_dimensions AS of
        WHERE (of.account, of.first_day, of.period) = (placed.account, placed.first_day, placed.period)
          AND dimension <> ''
        OFFSET 0
    ) AS used CROSS JOIN LATERAL (
        VALUES (placed.account, '', 1), ('', placed.plan, 2), ('', '', 3)
    ) AS whose (account, plan, place) CROSS JOIN LATERAL (
        SELECT * FROM catalog.limits
        WHERE (limits.account, limits.plan, limits.meter, limits.dimension, limits.dimension_value)
            = (whose.account, whose.plan, used.meter, used.dimension, used.value)
          AND limits.dimension <> '' AND limits.period = placed.period AND effective_from < until
        OFFSET 0
    ) AS limited
)
SELECT DISTINCT ON (account, period, first_day, meter, currency, model, dimension, dimension_value)
       account, period, first_day, meter, currency, model, dimension, dimension_value, maximum, steps, every, code
FROM found
ORDER BY account, period, first_day, meter, currency, model, dimension, dimension_value, place, effective_from DESC
"""
_OF_MONEY = """
SELECT first_day, array_agg(DISTINCT account) AS accounts, array_agg(DISTINCT meter) AS meters
FROM thresholds_in_force WHERE currency <> '' GROUP BY first_day
"""

# A limit of 0 is no threshold: nothing reaches it, it holds from the beginning.
_DECIDE = """
WITH totals AS (
    SELECT account, period, first_day, meter, currency, model, dimension, dimension_value, maximum, steps, every, code,
           coalesce(CASE
               WHEN currency <> '' THEN amount
               WHEN dimension <> '' THEN (
                   SELECT sum(quantity) FROM usage_dimensions AS of
                   WHERE (of.account, of.first_day, of.period, of.meter, of.dimension, of.value)
                       = (held.account, held.first_day, held.period, held.meter, held.dimension, held.dimension_value)
                     AND (held.model = '' OR of.model = held.model)
               )
               WHEN period = 'P1M' THEN (
                   SELECT sum(quantity) FROM usage_months AS of
                   WHERE of.account = held.account AND month = held.first_day AND of.meter = held.meter
                     AND (held.model = '' OR of.model = held.model)
               )
               WHEN starts IS NOT NULL THEN (
                   SELECT sum(quantity) FROM usage_hours AS of
                   WHERE of.account = held.account AND hour >= starts AND of.meter = held.meter
                     AND (held.model = '' OR of.model = held.model)
               )
               WHEN period = 'P1D' THEN (
                   SELECT sum(quantity) FROM usage_days AS of
                   WHERE of.account = held.account AND day = held.first_day AND of.meter = held.meter
                     AND (held.model = '' OR of.model = held.model)
               )
           END, 0) AS used
    FROM thresholds_in_force AS held LEFT JOIN unnest(
        %(amount_accounts)s::text[], %(amount_months)s::date[], %(amount_currencies)s::text[],
        %(amount_meters)s::text[], %(amounts)s::numeric[]
    ) AS spent (account, first_day, currency, meter, amount) USING (account, first_day, currency, meter)
    LEFT JOIN unnest(%(rolling_periods)s::text[], %(rolling_starts)s::timestamptz[])
        AS rolling (period, starts) USING (period)
), reached AS (
    SELECT DISTINCT account, period, first_day, meter, currency, model, dimension, dimension_value, threshold,
           true AS is_reached
    FROM totals CROSS JOIN LATERAL (
        SELECT unnest(steps || maximum)
        UNION ALL
        SELECT every * turn FROM generate_series(
            1, CASE WHEN every IS NOT NULL THEN least(div(used, every), %(multiples)s) END
        ) AS turn
    ) AS step (threshold)
    WHERE threshold > 0 AND used >= threshold
), stored AS (
    SELECT DISTINCT ON (account, period, first_day, meter, currency, model, dimension, dimension_value, threshold)
           account, period, first_day, meter, currency, model, dimension, dimension_value, threshold, version,
           is_crossed, rule
    FROM threshold_periods JOIN threshold_changes USING (account, period, first_day)
    ORDER BY account, period, first_day, meter, currency, model, dimension, dimension_value, threshold, version DESC
)
INSERT INTO threshold_changes (
    account, period, first_day, meter, currency, model, dimension, dimension_value, threshold, version, is_crossed,
    used, frontier, rule
)
SELECT account, period, first_day, meter, currency, model, dimension, dimension_value, trim_scale(threshold),
       -- Odd: crossed.
       1 + greatest(coalesce(version, 0), (epoch - 1) * %(versions)s + CASE WHEN is_reached THEN 0 ELSE 1 END),
       coalesce(is_reached, false), trim_scale(used), %(frontier)s, coalesce(code, rule, '')
FROM reached FULL JOIN stored
USING (account, period, first_day, meter, currency, model, dimension, dimension_value, threshold)
LEFT JOIN totals USING (account, period, first_day, meter, currency, model, dimension, dimension_value)
CROSS JOIN (SELECT coalesce(max(epoch), 1) AS epoch FROM jobs WHERE job = 'billing') AS driver
WHERE coalesce(is_reached, false) <> coalesce(is_crossed, false)
ORDER BY account, first_day, period, meter, currency, model, dimension, dimension_value, threshold
"""


def is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    """Whether limits, or accounts that may have some, changed since thresholds were decided, or a period rolls."""
    found = cursor.execute(_IS_DUE).fetchone()
    return bool(found and found[0]) or is_moved(cursor, around.previous_frontier, around.frontier)


def note_members(cursor: psycopg.Cursor[Any]) -> bool:
    """Whether there is anything to decide; then note, before the fold, which periods the members of `staged` change.

    And have `usage_dimensions` sum what limits name.
    """
    found = cursor.execute(_HAS_LIMITS).fetchone()
    if not (found and found[0]):
        return False
    cursor.execute(_MEMBERS)
    follow_limits(cursor)
    return True


def decide_thresholds(cursor: psycopg.Cursor[Any], around: Fold) -> int:
    """Append to `threshold_changes` what this batch, once it is folded, has crossed or retracted.

    So for accounts whose limits or plan changed, and for those whose usage entered or left a period that rolls. F is
    stored beside. Returns how many changed.
    """
    taken = cursor.execute(_TAKE_DUE).fetchall()
    if taken:
        decide_later(cursor)
    of_due = ("due_accounts", "due_plans", "due_since")
    due = {name: [row[place] for row in taken] for place, name in enumerate(of_due)}
    cursor.execute(_TOUCHED)
    cursor.execute(_PERIODS, due)
    rolling = add_rolling(cursor, due, around.previous_frontier, around.frontier)
    ends = [
        (calendar, period, first_day, _ends_at(_calendar(held_from, timezones), period, first_day))
        for calendar, held_from, timezones, period, first_day in cursor.execute(_CALENDARS).fetchall()
    ]
    names = ("calendars", "periods", "first_days", "ends")
    cursor.execute("ANALYZE threshold_periods")
    cursor.execute(_IN_FORCE, {name: [row[place] for row in ends] for place, name in enumerate(names)})
    cursor.execute("ANALYZE thresholds_in_force")
    amounts = list(_amounts(cursor))
    of_amounts = ("amount_accounts", "amount_months", "amount_currencies", "amount_meters", "amounts")
    parameters = {name: [row[place] for row in amounts] for place, name in enumerate(of_amounts)}
    of_all = {**rolling, "frontier": around.frontier, "versions": VERSIONS_OF_AN_EPOCH, "multiples": MAX_MULTIPLES}
    cursor.execute(_DECIDE, {**parameters, **of_all})
    changed = cursor.rowcount
    cursor.execute("DROP TABLE member_days, touched_meters, threshold_periods, thresholds_in_force")
    return changed


def _amounts(
    cursor: psycopg.Cursor[Any], batch_accounts: int = BATCH_ACCOUNTS
) -> Iterator[tuple[str, date, str, str, Decimal]]:
    """What the usage of each account's month costs so far, of all meters (empty) and of each, where that is limited."""
    months = cursor.execute(_OF_MONEY).fetchall()
    if not months:
        return
    with cursor.connection.cursor(row_factory=dict_row) as rows:
        for month, accounts, meters in months:
            for first in range(0, len(accounts), batch_accounts):
                spent = read_meter_amounts(rows, month, accounts[first : first + batch_accounts])
                for (account, currency, meter), amount in spent.items():
                    if meter in meters:
                        yield account, month, currency, meter, amount


def _calendar(held_from: list[datetime | None] | None, timezones: list[str] | None) -> Calendar:
    return tuple(map(ZoneChange, held_from, timezones)) if held_from and timezones else ALWAYS_UTC


@lru_cache(maxsize=4_096)
def _ends_at(calendar: Calendar, period: str, first_day: date) -> datetime | None:
    """When the day or month that begins on this date ends; None for a period that rolls."""
    if period not in CALENDAR_PERIODS:
        return None
    window = Window(period)
    return next(found.end for found in periods(window, calendar, first_day, first_day) if found.first == first_day)
