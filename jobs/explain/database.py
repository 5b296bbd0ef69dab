"""Usage in the database: windows, stragglers, corrections and the lines of months."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from jobs.billing_progress import Database
from jobs.explain.arithmetic import Cell, Row, WindowKey
from metering.months import IN_MONTH_SQL

STRAGGLER = (
    *("usage_lsn", "meter", "account", "model", "window_start", "event_time", "received_at", "late_seconds"),
    *("decision", "quantity", "unit_price", "amount", "currency", "price_version", "request_id"),
    *("hold_until", "decided_at", "decided_by", "reason", "decided_lsn"),
)
CORRECTION = (
    *("usage_lsn", "meter", "usage_lsns", "window_start", "account", "model", "currency", "cause", "decision"),
    *("old_quantity", "new_quantity", "old_amount", "new_amount", "corrected_at", "dimensions"),
    "number",
)

_BILLED_TO = "SELECT next_position FROM positions WHERE job = 'billing' AND input = 'usage'"
_NOW = "SELECT now() AS now"
_DECISIONS = "SELECT usage_lsn, meter, decision FROM stragglers WHERE usage_lsn = ANY (%(lsns)s)"
_REQUESTED = "unnest(%(starts)s::timestamptz[], %(accounts)s::text[]) AS requested (window_start, account)"
_WINDOWS = f"""
    SELECT window_start, window_end, account, model, meter, currency, price_version, unit_price, quantity, amount,
           late_quantity, corrected
    FROM usage_windows JOIN {_REQUESTED} USING (window_start, account)
    ORDER BY window_start, account, model, meter, currency, price_version
"""
_WINDOWS_OF = """
    SELECT window_start, account, model, meter, currency, count(*) OVER () AS there_are
    FROM usage_windows
    WHERE account = %(account)s AND window_start >= %(starts)s AND window_start < %(ends)s
      AND (%(model)s::text IS NULL OR model = %(model)s) AND (%(meter)s::text IS NULL OR meter = %(meter)s)
      AND (%(currency)s::text IS NULL OR currency = %(currency)s)
    GROUP BY window_start, account, model, meter, currency
    HAVING sum(quantity) <> 0
    ORDER BY window_start, model, meter, currency
    LIMIT %(limit)s
"""
_STRAGGLERS = f"""
    SELECT {", ".join(STRAGGLER)} FROM stragglers JOIN {_REQUESTED} USING (window_start, account)
    WHERE %(lsns)s::bigint[] IS NULL OR usage_lsn = ANY (%(lsns)s)
    ORDER BY usage_lsn, meter
"""
_CORRECTIONS = f"""
    SELECT {", ".join(CORRECTION)} FROM corrections JOIN {_REQUESTED} USING (window_start, account)
    WHERE period IS NULL AND (%(lsns)s::bigint[] IS NULL OR usage_lsns && %(lsns)s::bigint[])
    ORDER BY usage_lsn, meter
"""
_NAMED = "(%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))"
_STRAGGLER = f"SELECT window_start, account FROM stragglers WHERE usage_lsn = %(number)s AND {_NAMED} LIMIT 1"
_DECIDED_BY = "SELECT DISTINCT decided_lsn FROM stragglers WHERE usage_lsn = %s AND decided_lsn IS NOT NULL"
_CORRECTION = f"SELECT usage_lsns, window_start, account FROM corrections WHERE usage_lsn = %(number)s AND {_NAMED}"
_SESSION = f"""
    SELECT session_id, account, user_id, session_start, session_end, events, version, retracted_at
    FROM sessions WHERE session_id = %(number)s AND {_NAMED}
"""
# A minute lies between the first and the last of its day in every zone, and UTC's date is near.
_DAYS_HOLDING = f"""
    SELECT window_start, account, model, meter, currency, price_version, day
    FROM usage_days JOIN {_REQUESTED} USING (account)
    WHERE day BETWEEN window_start::date - 2 AND window_start::date + 2
      AND first_window <= window_start AND last_window_end > window_start
    ORDER BY day
"""
_SPANS = """
    SELECT day, min(first_window) AS starts, max(last_window_end) AS ends FROM usage_days
    WHERE account = %(account)s AND day BETWEEN %(first)s AND %(last)s
    GROUP BY day ORDER BY starts, day
"""
# Minutes of overlapping days cannot be separated, so they are summed together.
_DAYS_AND_MINUTES = """
    SELECT model, meter, currency, price_version, sum(day_quantity) AS day_quantity, sum(day_amount) AS day_amount,
           sum(quantity) AS quantity, sum(amount) AS amount
    FROM (
        SELECT model, meter, currency, price_version, quantity AS day_quantity, coalesce(amount, 0) AS day_amount,
               0 AS quantity, 0 AS amount
        FROM usage_days
        WHERE account = %(account)s AND day = ANY (%(days)s)
          AND meter NOT IN (SELECT meter FROM meters WHERE period IS NOT NULL)
          AND (%(meters)s::text[] IS NULL OR meter = ANY (%(meters)s))
        UNION ALL
        SELECT model, meter, currency, price_version, 0, 0, quantity, coalesce(amount, 0)
        FROM usage_windows
        WHERE account = %(account)s AND window_start >= %(starts)s AND window_start < %(ends)s
          AND (%(meters)s::text[] IS NULL OR meter = ANY (%(meters)s))
    ) AS both_sums
    GROUP BY model, meter, currency, price_version
    HAVING sum(day_quantity) <> sum(quantity) OR sum(day_amount) <> sum(amount)
    ORDER BY model, meter, currency, price_version
"""
# The order in which numbers are billed; of texts any.
_IN_SET = "PARTITION BY first_day, model, meter, currency, price_version"
_BILLED_FIRST = "occurred_at DESC NULLS LAST, CASE aggregation WHEN 'min' THEN -value ELSE value END DESC"
_MEMBERS = f"""
    SELECT first_day, model, meter, currency, price_version, member, value, occurred_at, member_rows, aggregation,
           period, members, aggregation = 'unique' OR place = 1 AS is_billed,
           (SELECT min(first_window) FROM usage_days
            WHERE (account, day, meter) = (%(account)s, first_day, standing.meter)) AS starts_at
    FROM (
        SELECT first_day, model, meter, currency, price_version, member, value, occurred_at, member_rows, aggregation,
               period, count(*) OVER ({_IN_SET}) AS members,
               row_number() OVER ({_IN_SET} ORDER BY {_BILLED_FIRST}, member) AS place
        FROM usage_members JOIN meters USING (meter)
        WHERE account = %(account)s AND {IN_MONTH_SQL.replace("day", "first_day")} AND member_rows > 0
          AND (%(model)s::text IS NULL OR model = %(model)s) AND (%(meter)s::text IS NULL OR meter = %(meter)s)
          AND (%(currency)s::text IS NULL OR currency = %(currency)s)
    ) AS standing
    WHERE place <= %(limit)s
    ORDER BY first_day, model, meter, currency, price_version, place
    LIMIT %(limit)s
"""
_UNEQUAL_SETS = f"""
    SELECT first_day, model, meter, currency, price_version, quantity, made
    FROM (
        SELECT day AS first_day, model, meter, currency, price_version, quantity, aggregation
        FROM usage_days JOIN meters USING (meter)
        WHERE account = %(account)s AND {IN_MONTH_SQL} AND aggregation IS NOT NULL
          AND (%(model)s::text IS NULL OR model = %(model)s) AND (%(meter)s::text IS NULL OR meter = %(meter)s)
          AND (%(currency)s::text IS NULL OR currency = %(currency)s)
    ) AS sets CROSS JOIN LATERAL (
        SELECT CASE WHEN sets.aggregation = 'unique' THEN count(*)
                    ELSE coalesce((array_agg(value ORDER BY {_BILLED_FIRST}))[1], 0) END AS made
        FROM usage_members AS known
        WHERE known.account = %(account)s AND known.first_day = sets.first_day AND known.meter = sets.meter
          AND (known.model, known.currency, known.price_version)
              IS NOT DISTINCT FROM (sets.model, sets.currency, sets.price_version)
          AND member_rows > 0
    ) AS counted
    WHERE made <> quantity
    ORDER BY first_day, model, meter, currency, price_version
"""
# One price version has one unit price: a line's amount is its quantity times that, multiplied once.
_LINES = f"""
    SELECT account, %(month)s::date AS month, model, meter, currency, price_version, max(unit_price) AS unit_price,
           sum(quantity) AS quantity, sum(quantity) * max(unit_price) AS amount
    FROM usage_days
    WHERE account = %(account)s AND {IN_MONTH_SQL}
      AND (%(meters)s::text[] IS NULL OR meter = ANY (%(meters)s))
    GROUP BY account, model, meter, currency, price_version
    ORDER BY model, meter, currency, price_version
"""


@dataclass(frozen=True)
class Stored:
    """One snapshot of the database, queried for windows. `window_start` and account select some."""

    database: Database

    def billed_to(self) -> int | None:
        """Billing has read usage below this lsn; None before it ever ran."""
        row = self.database.execute(_BILLED_TO).fetchone()
        return row["next_position"] if row else None

    def now(self) -> datetime:
        """The database's clock."""
        row = self.database.execute(_NOW).fetchone()
        assert row is not None
        now: datetime = row["now"]
        return now

    def decisions(self, lsns: Iterable[int]) -> dict[tuple[int, str], str]:
        """What was decided of stragglers, by (usage_lsn, meter)."""
        rows = self.database.execute(_DECISIONS, {"lsns": list(lsns)}).fetchall()
        return {(row["usage_lsn"], row["meter"]): row["decision"] for row in rows}

    def windows(self, minutes: Collection[tuple[datetime, str]]) -> dict[Cell, Row]:
        """Rows of `usage_windows` in their order: all of these minutes."""
        rows = self.database.execute(_WINDOWS, _parameters(minutes, None)).fetchall()
        return {(WindowKey(*(row[name] for name in WindowKey._fields)), row["price_version"]): row for row in rows}

    def stragglers(self, minutes: Collection[tuple[datetime, str]], lsns: Iterable[int] | None = None) -> list[Row]:
        """Rows (STRAGGLER) of these minutes, of these rows of usage or all (None)."""
        return list(self.database.execute(_STRAGGLERS, _parameters(minutes, lsns)).fetchall())

    def corrections(self, minutes: Collection[tuple[datetime, str]], lsns: Iterable[int] | None = None) -> list[Row]:
        """Rows (CORRECTION) of these minutes, by any of these rows of usage or all (None)."""
        return list(self.database.execute(_CORRECTIONS, _parameters(minutes, lsns)).fetchall())

    def straggler(self, lsn: int, accounts: Collection[str]) -> Row | None:
        """Its `window_start` and account, if this row of usage belongs to one of these accounts (empty: any)."""
        return self.database.execute(_STRAGGLER, _numbered(lsn, accounts)).fetchone()

    def decided_by(self, lsn: int) -> list[int]:
        """The rows of usage with decisions about this row, which was held."""
        return [row["decided_lsn"] for row in self.database.execute(_DECIDED_BY, [lsn]).fetchall()]

    def correction(self, lsn: int, accounts: Collection[str]) -> list[Row]:
        """The corrections (`usage_lsns, window_start, account`) of which this is the lowest row, one for each meter."""
        return list(self.database.execute(_CORRECTION, _numbered(lsn, accounts)).fetchall())

    def session(self, number: int, accounts: Collection[str]) -> Row | None:
        """A session by its number, of these accounts or of any (empty)."""
        return self.database.execute(_SESSION, _numbered(number, accounts)).fetchone()

    def days_holding(self, minutes: Collection[tuple[datetime, str]]) -> list[Row]:
        """The days that may hold these minutes, for each model, meter, currency and price version; in order."""
        return list(self.database.execute(_DAYS_HOLDING, _parameters(minutes, None)).fetchall())

    def spans(self, account: str, first: date, last: date) -> list[Row]:
        """The days (`day, starts, ends`) of an account from one to another, in the order in which they start."""
        return list(self.database.execute(_SPANS, {"account": account, "first": first, "last": last}).fetchall())

    def windows_of(
        self, account: str, starts: datetime, ends: datetime, of: Mapping[str, str | None], limit: int
    ) -> tuple[list[WindowKey], int]:
        """The first windows of an account in a time, of a `model`, `meter` and `currency` or any (None); how many."""
        parameters = {"account": account, "starts": starts, "ends": ends, **of, "limit": limit}
        rows = self.database.execute(_WINDOWS_OF, parameters).fetchall()
        keys = [WindowKey(*(row[name] for name in WindowKey._fields)) for row in rows]
        return keys, rows[0]["there_are"] if rows else 0

    def unequal_days(
        self, account: str, days: Collection[date], starts: datetime, ends: datetime, meters: Collection[str] | None
    ) -> list[Row]:
        """Where days are not their minutes from `starts` to `ends`, by model, meter, currency and price version.

        Of some meters, or of all (None).
        """
        parameters = {"account": account, "days": list(days), "starts": starts, "ends": ends, "meters": _some(meters)}
        return list(self.database.execute(_DAYS_AND_MINUTES, parameters).fetchall())

    def members(self, account: str, month: date, filters: Mapping[str, str | None], limit: int) -> list[Row]:
        """The first members of the periods that begin in a month: of numbers the one that is billed comes first.

        `members`: how many the period has; `is_billed`: whether the member counts, or its number is the quantity.
        `filters`: model, meter and currency; None: any.
        """
        parameters = {"account": account, "month": month, "limit": limit, **filters}
        return list(self.database.execute(_MEMBERS, parameters).fetchall())

    def unequal_sets(self, account: str, month: date, filters: Mapping[str, str | None]) -> list[Row]:
        """Periods that begin in a month whose `quantity` is not what their members make (`made`)."""
        parameters = {"account": account, "month": month, **filters}
        return list(self.database.execute(_UNEQUAL_SETS, parameters).fetchall())

    def lines(self, account: str, month: date, meters: Collection[str] | None = None) -> list[Row]:
        """The lines of an account's month, one for each model, meter, currency and price version.

        Of some meters, or of all (None).
        """
        parameters = {"account": account, "month": month, "meters": _some(meters)}
        return list(self.database.execute(_LINES, parameters).fetchall())


def _numbered(number: int, accounts: Collection[str]) -> Mapping[str, Any]:
    return {"number": number, "accounts": list(accounts) or None}


def _some(names: Collection[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _parameters(minutes: Collection[tuple[datetime, str]], lsns: Iterable[int] | None) -> Mapping[str, Any]:
    places = sorted(set(minutes))
    return {
        "starts": [start for start, _ in places],
        "accounts": [account for _, account in places],
        "lsns": None if lsns is None else list(lsns),
    }
