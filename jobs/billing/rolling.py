"""Limits whose period rolls: whose totals of the last N hours this batch, or F in another hour, may have changed.

The window is the one of N whole hours of UTC that holds F and began first (`rolling_start`); it has no end. Before
there is an F nothing counts. So the state is a function of the totals of hours, of the catalog and of F.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg

from metering.limits import ROLLING_FIRST_DAY, rolling_hours, rolling_start

IS_ROLLING = "starts_with(period, 'PT')"
"""Of a row of `catalog.limits` or `threshold_changes`."""
_HAS_ROLLING = f"SELECT EXISTS (SELECT FROM catalog.limits WHERE {IS_ROLLING})"
_PERIODS = f"SELECT DISTINCT period FROM catalog.limits WHERE {IS_ROLLING} ORDER BY period"
_NAMES = ("rolling_periods", "rolling_starts", "rolling_starts_before")

# The branches are of accounts that may count under such a limit, each with its period. Only those are executed that
# can find any: a batch within the hour reads no hour but those of its accounts.
_ADD = f"""
INSERT INTO threshold_periods (account, period, first_day, calendar)
WITH rolling AS (
    SELECT period, coalesce(starts, 'infinity') AS starts, coalesce(starts_before, 'infinity') AS starts_before
    FROM unnest(
        %(rolling_periods)s::text[], %(rolling_starts)s::timestamptz[], %(rolling_starts_before)s::timestamptz[]
    ) AS rolling (period, starts, starts_before)
), counted AS (
    SELECT DISTINCT period, meter, starts, starts_before FROM rolling JOIN catalog.limits USING (period)
), named AS (
    SELECT * FROM unnest(%(due_accounts)s::text[], %(due_plans)s::text[]) AS named (account, plan)
), due AS (
    SELECT account FROM named WHERE account <> ''
    UNION
    SELECT history.account FROM named JOIN catalog.account_history AS history USING (plan) WHERE plan <> ''
)
SELECT DISTINCT account, period, '{ROLLING_FIRST_DAY}'::date, 0 FROM ({{branches}}) AS found
"""
_TOUCHED = """
    SELECT account, counted.period FROM touched_meters JOIN counted USING (meter) WHERE last_window >= starts
"""
# Negative usage may leave as well, so what leaves also raises a total. If F goes back, these hours come back.
_MOVED = """
    SELECT account, period FROM counted JOIN usage_hours USING (meter)
    WHERE hour >= least(starts, starts_before) AND hour < greatest(starts, starts_before)
"""
_DUE = f"""
    SELECT account, period FROM due JOIN usage_hours USING (account) JOIN counted USING (meter) WHERE hour >= starts
    UNION
    SELECT account, period FROM due JOIN threshold_changes USING (account)
    WHERE {IS_ROLLING} AND first_day = '{ROLLING_FIRST_DAY}'
"""
_DUE_ALL = f"""
    SELECT account, period FROM counted JOIN usage_hours USING (meter) WHERE hour >= starts
    UNION
    SELECT account, period FROM threshold_changes WHERE {IS_ROLLING}
"""


def is_moved(cursor: psycopg.Cursor[Any], previous: datetime | None, frontier: datetime | None) -> bool:
    """Whether F is in another hour than before, and the catalog has limits for which that matters."""
    if rolling_start(1, previous) == rolling_start(1, frontier):
        return False
    found = cursor.execute(_HAS_ROLLING).fetchone()
    return bool(found and found[0])


def add_rolling(
    cursor: psycopg.Cursor[Any],
    due: Mapping[str, Sequence[Any]],
    previous: datetime | None,
    frontier: datetime | None,
) -> Mapping[str, Sequence[Any]]:
    """Add to `threshold_periods` what is to be decided of periods that roll.

    `due` has `due_accounts` and `due_plans`, of those whose limits or plan changed; both empty: everybody. Returns the
    parameters `rolling_periods` and `rolling_starts`: each period of the catalog, and from when on usage counts.
    """
    found = [period for (period,) in cursor.execute(_PERIODS).fetchall()]
    hours = [hours for period in found if (hours := rolling_hours(period))]
    starts, before = ([rolling_start(n, at) for n in hours] for at in (frontier, previous))
    windows = dict(zip(_NAMES, (found, starts, before), strict=True))
    named = list(zip(due["due_accounts"], due["due_plans"], strict=True))
    branches = [_TOUCHED] if found else []
    if starts != before:
        branches.append(_MOVED)
    if ("", "") in named:
        branches.append(_DUE_ALL)
    elif named:
        branches.append(_DUE)
    if branches:
        cursor.execute(_ADD.format(branches=" UNION ".join(branches)), {**due, **windows})
    return windows
