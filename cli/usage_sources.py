"""Where usage is read: minutes; for days and months of one calendar whole days; by dimensions the days of each account.

Each source is a SELECT of COLUMNS and what names the window. Parameters: `start`, `end`, `accounts`, `zone`.
"""

from __future__ import annotations

from cli.periods import Window, window_key_sql

COLUMNS = "account, model, meter, currency, price_version, quantity, amount, corrected"

_RANGE = """
    (%(start)s::timestamptz IS NULL OR {instant} >= %(start)s) AND (%(end)s::timestamptz IS NULL OR {instant} < %(end)s)
"""
_ACCOUNTS = "(%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))"
# A span is read as days where it lies in one window, else as minutes: the sum is the same. A day is called what UTC
# calls it, or the day before or after, in any zone and after any change of zone. OFFSET 0: the minutes of each span are
# found by their index; the planner would rather read all that there are, once.
_DAYS = """
    WITH placed AS (
        SELECT *, {key_of_start} AS window_key, {key_of_start} = {key_of_end} AS is_whole
        FROM usage_spans(%(start)s::timestamptz::date - 2, %(end)s::timestamptz::date + 2) WHERE {accounts}
    )
    SELECT {columns}, window_key
    FROM (SELECT account, day, window_key FROM placed WHERE is_whole AND {starts_in_range}) AS whole
    JOIN usage_days USING (account, day)
    UNION ALL
    SELECT {columns}, {key} AS window_key
    FROM (SELECT DISTINCT account AS of_account, starts, ends FROM placed WHERE NOT is_whole) AS cut
    CROSS JOIN LATERAL (
        SELECT * FROM usage_windows
        WHERE account = of_account AND window_start >= starts AND window_start < ends AND {in_range}
        OFFSET 0
    ) AS minutes
"""


def of_windows(window: Window) -> str:
    """COLUMNS and `window_key` of all usage in the range: the minutes of no day that lies in one window."""
    key, in_range = window_key_sql(window), _RANGE.format(instant="window_start")
    if window in (Window.MINUTE, Window.HOUR):
        return f"SELECT {COLUMNS}, {key} AS window_key FROM usage_windows WHERE {in_range} AND {_ACCOUNTS}"
    return _DAYS.format(
        columns=COLUMNS,
        accounts=_ACCOUNTS,
        key=key,
        key_of_start=window_key_sql(window, "starts"),
        key_of_end=window_key_sql(window, "(ends - interval '1 minute')"),
        starts_in_range=_RANGE.format(instant="starts"),
        in_range=in_range,
    )


def of_days(window: Window) -> str:
    """COLUMNS, `dimensions`, `is_other`, `month`, `window_start` and `window_end` of days by dimensions.

    Of the periods of calendars (parameters `period_calendars`, `firsts`, `starts`, `ends`, all of them from `first_day`
    to before `end_day`) that the accounts have (`calendar_accounts`, `calendars`; any other has calendar 0).
    """
    first = {Window.DAY: "day", Window.MONTH: "date_trunc('month', day)::date"}[window]
    return f"""
        SELECT {COLUMNS}, dimensions, is_other, date_trunc('month', day)::date AS month,
               period.starts AS window_start, period.ends AS window_end
        FROM usage_days
        LEFT JOIN unnest(%(calendar_accounts)s::text[], %(calendars)s::int[]) AS known (account, calendar)
            USING (account)
        JOIN unnest(%(period_calendars)s::int[], %(firsts)s::date[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
            AS period (calendar, first, starts, ends)
            ON period.calendar = coalesce(known.calendar, 0) AND period.first = {first}
        WHERE day >= %(first_day)s AND day < %(end_day)s AND {_ACCOUNTS}
    """
