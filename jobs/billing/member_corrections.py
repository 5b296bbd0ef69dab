"""Corrections of closed periods: one for each row of usage, or for all rows that correct one row together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from metering.digits import EXACT
from metering.meters import OfMeter
from metering.period_meters import NEVER, Aggregation, Member, Members

Row = Mapping[str, Any]


class PeriodKey(NamedTuple):
    """A period of a meter, with all its price versions."""

    account: str
    first_day: date
    model: str | None
    meter: str
    currency: str | None


@dataclass(frozen=True)
class MemberCorrection:
    """Quantity and amount of a period before and after some rows of usage.

    Both amounts are None if no member has a price, before or after.
    """

    key: PeriodKey
    usage_lsns: list[int]
    window_start: datetime
    period: str
    cause: str
    old_quantity: Decimal
    new_quantity: Decimal
    old_amount: Decimal | None
    new_amount: Decimal | None

    @property
    def meter(self) -> str:
        """The meter."""
        return self.key.meter

    @property
    def parameters(self) -> dict[str, Any]:
        """All fields, and those of the key."""
        return {**asdict(self), **self.key._asdict(), "usage_lsn": self.usage_lsns[0]}


DUE_PERIODS = """
(SELECT account, first_day, model, meter, currency, max(aggregation) AS aggregation FROM late_members
 GROUP BY account, first_day, model, meter, currency
 HAVING max(ends_at) <= coalesce((%(of_meters)s::jsonb ->> meter)::timestamptz, %(of_others)s::timestamptz))
"""
"""The periods that have closed by `due`, with all that waits for them."""
_OF_PERIOD = """
{rows}.account = periods.account AND {rows}.{day} = periods.first_day AND {rows}.meter = periods.meter
AND ({rows}.model, {rows}.currency) IS NOT DISTINCT FROM (periods.model, periods.currency)
"""
_LATE_ROWS = f"""
SELECT late.account, late.first_day AS day, late.model, late.meter, late.currency, price_version, late.aggregation,
       period, window_start, usage_lsn, is_correction, corrects_lsns, cause, member_rows, member, value, occurred_at
FROM {DUE_PERIODS} AS periods JOIN late_members AS late ON {_OF_PERIOD.format(rows="late", day="first_day")}
ORDER BY usage_lsn, late.meter
"""
_OF_SETS = f"""
FROM {DUE_PERIODS} AS periods JOIN usage_members AS known ON {_OF_PERIOD.format(rows="known", day="first_day")}
"""
_IS_CHANGED = """
EXISTS (
    SELECT FROM late_members AS late
    WHERE (late.account, late.first_day, late.meter, late.member)
        = (known.account, known.first_day, known.meter, known.member)
      AND (late.model, late.currency, late.price_version)
          IS NOT DISTINCT FROM (known.model, known.currency, known.price_version)
)
"""
_KNOWN = "known.account, known.first_day AS day, known.model, known.meter, known.currency, known.price_version"
_KEY = _KNOWN.replace(" AS day", "")
_MEMBERS = f"SELECT {_KNOWN}, member, value, occurred_at, member_rows {_OF_SETS} WHERE {_IS_CHANGED}"
_UNCHANGED_COUNTS = (
    f"SELECT {_KNOWN}, count(*) AS members {_OF_SETS} WHERE member_rows > 0 AND NOT {_IS_CHANGED} GROUP BY {_KEY}"
)
_UNCHANGED_LAST = f"""
SELECT DISTINCT ON ({_KEY}) {_KNOWN}, value, occurred_at {_OF_SETS}
WHERE member_rows > 0 AND value IS NOT NULL AND NOT {_IS_CHANGED}
ORDER BY {_KEY}, occurred_at DESC NULLS LAST, CASE periods.aggregation WHEN 'min' THEN -value ELSE value END DESC
"""
_PRICES = f"""
SELECT price_version, max(unit_price) AS unit_price
FROM {DUE_PERIODS} AS periods JOIN usage_days ON {_OF_PERIOD.format(rows="usage_days", day="day")}
WHERE price_version IS NOT NULL GROUP BY price_version
"""
_REMOVE = f"""
DELETE FROM late_members AS late USING {DUE_PERIODS} AS periods
WHERE {_OF_PERIOD.format(rows="late", day="first_day")}
"""


def due(closed: OfMeter[datetime | None]) -> dict[str, Any]:
    """The parameters of DUE_PERIODS: by when periods ended that have closed, by meter (None: none has)."""
    never = "-infinity"
    own = {meter: never if at is None else at.isoformat() for meter, at in closed.own.items()}
    return {"of_meters": Jsonb(own), "of_others": never if closed.every is None else closed.every.isoformat()}


def corrected_sets(cursor: psycopg.Cursor[Any], closed: OfMeter[datetime | None]) -> list[MemberCorrection]:
    """The corrections of periods that ended by `closed`, in the order of usage. Removes what waited for them.

    `usage_members` has all rows already. What waits is subtracted: the first correction begins with what was on time.
    """
    periods_due = due(closed)
    reader = cursor.connection.cursor(row_factory=dict_row)
    rows = reader.execute(_LATE_ROWS, periods_due).fetchall()
    prices = {row["price_version"]: row["unit_price"] for row in reader.execute(_PRICES, periods_due).fetchall()}
    periods = _before(reader, rows, periods_due)
    cursor.execute(_REMOVE, periods_due)
    return list(_stepped(rows, periods, prices))


Sets = dict[int | None, Members]
"""The members of a period, by price version."""


def _before(
    reader: psycopg.Cursor[dict[str, Any]], rows: Sequence[Row], periods_due: Mapping[str, Any]
) -> defaultdict[PeriodKey, Sets]:
    """The members of each corrected period without those of the late rows, by price version."""
    counts: defaultdict[Any, defaultdict[Member, int]] = defaultdict(lambda: defaultdict(int))
    others: dict[Any, int | Member] = {}
    for row in reader.execute(_MEMBERS, periods_due).fetchall():
        counts[period_key(row), row["price_version"]][member_of(row)] += row["member_rows"]
    for late in rows:
        counts[period_key(late), late["price_version"]][member_of(late)] -= late["member_rows"]
    for row in reader.execute(_UNCHANGED_COUNTS, periods_due).fetchall():
        others[period_key(row), row["price_version"]] = row["members"]
    for row in reader.execute(_UNCHANGED_LAST, periods_due).fetchall():
        others[period_key(row), row["price_version"]] = member_of(row)
    aggregations = {period_key(row): Aggregation(row["aggregation"]) for row in rows}
    periods: defaultdict[PeriodKey, Sets] = defaultdict(dict)
    for key, version in dict.fromkeys([*counts, *others]):
        kind = aggregations[key]
        nothing = 0 if kind is Aggregation.UNIQUE else None
        periods[key][version] = Members(kind, counts[key, version], others.get((key, version), nothing))
    return periods


def _stepped(
    rows: Sequence[Row], periods: Mapping[PeriodKey, Sets], prices: Mapping[int, Decimal]
) -> Iterator[MemberCorrection]:
    """The corrections that late rows make, in the order of usage. Applies the rows to `periods`.

    `prices`: unit prices by price version. History (not `is_correction`) changes a period without a correction.
    """
    together: defaultdict[Any, list[Row]] = defaultdict(list)
    lowest = _lowest([row["corrects_lsns"] for row in rows if row["corrects_lsns"]])
    for row in rows:
        first_lsn = lowest[row["corrects_lsns"][0]] if row["corrects_lsns"] else row["usage_lsn"]
        together[period_key(row), row["cause"], row["is_correction"], first_lsn].append(row)
    for (key, cause, is_correction, _), changing in together.items():
        sets = periods[key]
        old_quantity, old_amount = _total(sets, prices)
        for row in changing:
            sets[row["price_version"]].add(member_of(row), row["member_rows"])
        new_quantity, new_amount = _total(sets, prices)
        if not is_correction or (old_quantity, old_amount or 0) == (new_quantity, new_amount or 0):
            continue
        if (old_amount, new_amount) != (None, None):
            old_amount, new_amount = old_amount or Decimal(0), new_amount or Decimal(0)
        lsns = sorted({row["usage_lsn"] for row in changing})
        starts_at, period = min(row["window_start"] for row in changing), changing[0]["period"]
        numbers = (old_quantity, new_quantity, old_amount, new_amount)
        yield MemberCorrection(key, lsns, starts_at, period, cause, *numbers)


def _lowest(corrected: Iterable[list[int]]) -> dict[int, int]:
    """The lsns of corrected rows → the lowest that is corrected together with each."""
    found: dict[int, int] = {}
    for lsns in corrected:
        lowest = min(found.get(lsn, lsn) for lsn in lsns)
        found |= {lsn: min(found.get(lsn, lsn), lowest) for lsn in lsns}
    return found


def _total(sets: Sets, prices: Mapping[int, Decimal]) -> tuple[Decimal, Decimal | None]:
    """Quantity and amount over all price versions; the amount is None where no member has a price."""
    quantity, amount = Decimal(0), None
    for version, members in sets.items():
        quantity = EXACT.add(quantity, members.quantity)
        if version is not None and not members.is_empty:
            amount = EXACT.add(amount or Decimal(0), EXACT.multiply(members.quantity, prices[version]))
    return quantity, amount


def period_key(row: Row) -> PeriodKey:
    """The period of a row of `staged`."""
    return PeriodKey(row["account"], row["day"], row["model"], row["meter"], row["currency"])


def member_of(row: Row) -> Member:
    """The member in a row of `staged` or `usage_members`."""
    if row["value"] is None:
        return Member(row["member"])
    return Member("", row["value"], row["occurred_at"] or NEVER)
