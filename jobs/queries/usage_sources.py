"""Sources of usage: minutes, hours; whole days for days and months of one calendar; an account's days for dimensions.

A meter of a period has no minutes: its quantity belongs to a day or month of the account, and is read only where the
requested calendar has the same day or month.

Each source is a SELECT of COLUMNS, `late_quantity`, `unmetered_requests` and the names of the window. Parameters:
`start`, `end`, `accounts`, `zone`, and those of `near_days`. Only minutes and hours know what was late, and requests
that did not report a meter; a request without the part that another meter counts (`within`) is not unmetered.
"""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta

from jobs.queries.periods import Window, window_key_sql

NEAR = timedelta(days=2)
COLUMNS = "account, model, meter, currency, price_version, unit_price, quantity, amount, corrected"
_OF_PERIODS = "SELECT meter FROM meters WHERE period IS NOT NULL"
_NO_LATE = "NULL::numeric AS late_quantity"
_NO_PART = "meter IN (SELECT meter FROM meters WHERE within IS NULL)"

_RANGE = """
    (%(start)s::timestamptz IS NULL OR {instant} >= %(start)s) AND (%(end)s::timestamptz IS NULL OR {instant} < %(end)s)
"""
_ACCOUNTS = "(%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))"
# The days of the spans, said once more for the index of days.
_NEAR = "(%(near_from)s::date IS NULL OR day >= %(near_from)s) AND (%(near_to)s::date IS NULL OR day <= %(near_to)s)"
# A span is read as days where it lies in one window, else as minutes: the sum is the same. A day is called what UTC
# calls it, or the day before or after, in any zone and after any change of zone. OFFSET 0: the minutes of each span are
# found by their index; the planner would rather read all that there are, once.
_DAYS = """
    WITH placed AS (
        SELECT *, {key_of_start} AS window_key, {key_of_start} = {key_of_end} AS is_whole
        FROM usage_spans(%(near_from)s::date, %(near_to)s::date) WHERE {accounts}
    )
    SELECT {columns}, {no_late}, 0 AS unmetered_requests, window_key
    FROM (SELECT account, day, window_key FROM placed WHERE is_whole AND {starts_in_range}) AS whole
    JOIN usage_days USING (account, day) WHERE meter NOT IN ({of_periods}) AND {near}
    UNION ALL
    SELECT {columns}, {no_late}, 0 AS unmetered_requests, {key_of_period} AS window_key
    FROM ({of_accounts}) AS of_accounts WHERE meter IN ({of_periods})
    UNION ALL
    SELECT {columns}, {no_late}, 0 AS unmetered_requests, {key} AS window_key
    FROM (SELECT DISTINCT account AS of_account, starts, ends FROM placed WHERE NOT is_whole) AS cut
    CROSS JOIN LATERAL (
        SELECT * FROM usage_windows
        WHERE account = of_account AND window_start >= starts AND window_start < ends AND {in_range}
        OFFSET 0
    ) AS minutes
    UNION ALL
    SELECT account, model, meter, currency, NULL, NULL, 0, NULL, false, NULL, unmetered_rows, {key}
    FROM usage_windows WHERE unmetered_rows > 0 AND {no_part} AND {in_range} AND {accounts}
"""


def near_days(start: datetime | None, end: datetime | None) -> dict[str, date | None]:
    """The parameters `near_from` and `near_to`: all usage of the range is on these days, in any time zone."""
    return {
        "near_from": None if start is None or start.year == MINYEAR else start.astimezone(UTC).date() - NEAR,
        "near_to": None if end is None or end.year == MAXYEAR else end.astimezone(UTC).date() + NEAR,
    }


def of_windows(window: Window) -> str:
    """COLUMNS, `unmetered_requests` and `window_key` of all usage in the range.

    The minutes of no day that lies in one window are read, but for those with requests that are unmetered. Days and
    months have the parameters of `of_days`, too: the periods of calendars that are windows of the zone.
    """
    key, in_range = window_key_sql(window), _RANGE.format(instant="window_start")
    if window is Window.HOUR:
        unmetered = f"CASE WHEN {_NO_PART} THEN unmetered_rows ELSE 0 END AS unmetered_requests"
        columns = f"{COLUMNS}, late_quantity, {unmetered}, hour AS window_key"
        return f"SELECT {columns} FROM usage_hours WHERE {_RANGE.format(instant='hour')} AND {_ACCOUNTS}"
    if window is Window.MINUTE:
        unmetered = f"CASE WHEN {_NO_PART} THEN unmetered_rows ELSE 0 END AS unmetered_requests"
        columns = f"{COLUMNS}, late_quantity, {unmetered}, {key} AS window_key"
        return f"SELECT {columns} FROM usage_windows WHERE {in_range} AND {_ACCOUNTS}"
    return _DAYS.format(
        columns=COLUMNS,
        no_late=_NO_LATE,
        no_part=_NO_PART,
        of_periods=_OF_PERIODS,
        key_of_period=window_key_sql(window, "window_start"),
        of_accounts=of_days(window),
        accounts=_ACCOUNTS,
        near=_NEAR,
        key=key,
        key_of_start=window_key_sql(window, "starts"),
        key_of_end=window_key_sql(window, "(ends - interval '1 minute')"),
        starts_in_range=_RANGE.format(instant="starts"),
        in_range=in_range,
    )


def of_days(window: Window) -> str:
    """COLUMNS, `dimensions`, `is_other`, `month`, `window_start` and `window_end` of days by dimensions.

    Unmetered requests are not stored by dimension: `unmetered_requests` is null.

    The periods are those of calendars (parameters `period_calendars`, `firsts`, `starts`, `ends`, all of them from
    `first_day` to before `end_day`) that the accounts have (`calendar_accounts`, `calendars`; any other has calendar
    0).
    """
    first = {Window.DAY: "day", Window.MONTH: "date_trunc('month', day)::date"}[window]
    shown = "true" if window is Window.MONTH else f"meter NOT IN ({_OF_PERIODS} AND period = 'month')"
    return f"""
        SELECT {COLUMNS}, {_NO_LATE}, NULL::bigint AS unmetered_requests,
               dimensions, is_other, date_trunc('month', day)::date AS month,
               period.starts AS window_start, period.ends AS window_end
        FROM usage_days
        LEFT JOIN unnest(%(calendar_accounts)s::text[], %(calendars)s::int[]) AS known (account, calendar)
            USING (account)
        JOIN unnest(%(period_calendars)s::int[], %(firsts)s::date[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
            AS period (calendar, first, starts, ends)
            ON period.calendar = coalesce(known.calendar, 0) AND period.first = {first}
        WHERE day >= %(first_day)s AND day < %(end_day)s AND {_ACCOUNTS} AND {shown}
    """
