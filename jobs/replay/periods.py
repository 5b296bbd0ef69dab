"""Meters of a period in a replay: the days and months that lie wholly in the compared time, live and replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from metering.digits import EXACT
from metering.months import ZoneChange, month_zones, period_bounds
from metering.period_meters import Period

Row = dict[str, Any]
_SETS = """
SELECT account, day AS first_day, model, meter, currency, min(first_window) AS starts, sum(quantity) AS quantity,
       sum(amount) AS amount
FROM {days}
WHERE meter = ANY (%(meters)s) AND first_window < %(end)s
  AND day >= (%(start)s::timestamptz - interval '33 days')::date
GROUP BY 1, 2, 3, 4, 5
"""
_DECLARED = "SELECT meter, period FROM {meters} WHERE period IS NOT NULL"
_ZONES = """
SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS held_from,
       array_agg(timezone ORDER BY holds_from) AS timezones
FROM catalog.account_zones GROUP BY account
"""


@dataclass(frozen=True)
class Periods:
    """The periods that lie in the compared time, and how many lie in it only partly.

    Each has `period`, `first_day`, `window_start` (its start), `account, model, meter, currency`, and quantity and
    amount of both sides and their difference.
    """

    rows: list[Row]
    left_out: int


def compared_periods(
    cursor: psycopg.Cursor[Any],
    schemas: tuple[str, str],
    assumed: Mapping[str, Period],
    start: datetime,
    end: datetime,
) -> Periods:
    """The periods in `[start, end)` of two schemas, the live and the replayed one.

    `assumed`: the meters of a period that the replay declares. A replay has all members of a period that begins in the
    compared time, and only some of an earlier one. The end is that of the account's calendar as it is now.
    """
    reader, (live, replayed) = cursor.connection.cursor(row_factory=dict_row), schemas
    declared = reader.execute(sql.SQL(_DECLARED).format(meters=sql.Identifier(live, "meters"))).fetchall()
    known = {row["meter"]: Period(row["period"]) for row in declared}
    both: defaultdict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
    sides = (("live", live, known), ("replayed", replayed, {**known, **assumed}))
    for side, schema, meters in sides:
        statement = sql.SQL(_SETS).format(days=sql.Identifier(schema, "usage_days"))
        for row in reader.execute(statement, {"meters": list(meters), "start": start, "end": end}).fetchall():
            key = tuple(row[name] for name in ("account", "first_day", "model", "meter", "currency"))
            both[key][side] = row
    zones = {
        row["account"]: [ZoneChange(*change) for change in zip(row["held_from"], row["timezones"], strict=True)]
        for row in reader.execute(_ZONES).fetchall()
    }
    periods = {**known, **assumed}
    rows, left_out = [], set()
    for (account, first_day, model, meter, currency), found in both.items():
        starts = min(row["starts"] for row in found.values())
        ends = _end(zones.get(account, ()), first_day, periods[meter])
        if ends <= start:
            continue
        if starts < start or ends > end:
            left_out.add((account, meter, first_day))
            continue
        place = {"window_start": starts, "account": account, "model": model, "meter": meter, "currency": currency}
        rows.append({**place, **_numbers(found), "period": periods[meter].value, "first_day": first_day})
    return Periods(rows, len(left_out))


def _end(zones: Iterable[ZoneChange], first_day: date, period: Period) -> datetime:
    months = [month for month in month_zones(list(zones)) if month.first_day is None or month.first_day <= first_day]
    return period_bounds(first_day, period, months[-1])[1]


def _numbers(found: Mapping[str, Row]) -> Row:
    numbers: Row = {}
    for name, nothing in (("quantity", Decimal(0)), ("amount", None)):
        live, replayed = (found[side][name] if side in found else nothing for side in ("live", "replayed"))
        difference = EXACT.subtract(replayed or Decimal(0), live or Decimal(0))
        numbers |= {f"live_{name}": live, f"replayed_{name}": replayed, f"difference_{name}": difference}
    return numbers


def is_different(row: Row) -> bool:
    """Whether the two sides of a period differ."""
    return bool(row["live_quantity"] != row["replayed_quantity"] or row["live_amount"] != row["replayed_amount"])


def with_amounts(totals: Iterable[Row], periods: Iterable[Row]) -> list[Row]:
    """Totals of windows by account and currency, with the amounts of these periods, too."""
    found = {(row["account"], row["currency"]): row for row in totals}
    for period in periods:
        key = period["account"], period["currency"]
        nothing = {"account": key[0], "currency": key[1], "live_amount": None, "replayed_amount": None}
        row = found.get(key, {**nothing, "difference_amount": Decimal(0)})
        sides = {name: _sum(row[name], period[name]) for name in ("live_amount", "replayed_amount")}
        found[key] = {**row, **sides, "difference_amount": _sum(row["difference_amount"], period["difference_amount"])}
    return sorted(found.values(), key=lambda row: (row["account"], row["currency"] is None, row["currency"] or ""))


def _sum(amount: Decimal | None, other: Decimal | None) -> Decimal | None:
    if amount is None or other is None:
        return other if amount is None else amount
    return EXACT.add(amount, other)
