"""The bills of whole months in a replay: what it billed, under the catalog that is assumed, beside the live bills.

Both sides are computed by `jobs.queries.bills`. That reads usage, the prices of its versions and the catalog; of all of
them the schema of a replay has its own copies.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.rows import dict_row

from jobs.joins.price_ladders import COLUMNS, ladders
from jobs.queries.bills import TIER_INCLUDED, Month, Period, read_month
from jobs.queries.invoices import month_text
from jobs.replay.assumptions import Assumptions
from jobs.runtime.errors import Refused
from metering.digits import EXACT
from metering.plan_terms import PLAN_MODEL, Fee
from metering.price_tiers import Kind
from metering.pricing import ASSUMED_VERSIONS_FROM

Row = dict[str, Any]
LINE_KEY = ("month", "account", "kind", "model", "meter", "tier", "currency")
TOTAL_KEY = ("month", "account", "currency")
_OF_A_MONTH = frozenset({Kind.GRADUATED.value, Kind.VOLUME.value, Kind.PACKAGE.value, *(fee.value for fee in Fee)})
_CATALOG = re.compile(r"\bcatalog\.")
_MONTHS = """
CREATE TABLE usage_months AS
SELECT account, date_trunc('month', day::timestamp)::date AS month, model, meter, currency, price_version, unit_price,
       sum(quantity) AS quantity, min(first_window) AS first_window, max(last_window_end) AS last_window_end,
       bool_or(corrected) AS corrected
FROM usage_days GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
# Copies: a view would keep the catalog's tables from being changed by a later release.
_COPIES = """
CREATE TABLE price_ladders (LIKE {live}.price_ladders);
CREATE TABLE accounts AS SELECT account, name FROM catalog.accounts;
CREATE TABLE account_history AS SELECT * FROM catalog.account_history;
CREATE TABLE account_zones AS SELECT * FROM catalog.account_zones;
CREATE TABLE prices AS
    SELECT plan, model, currency, effective_from, terms FROM catalog.prices WHERE model = {plan_model};
CREATE TABLE ended_prices AS
    SELECT plan, model, currency, effective_from, terms, ended_at FROM catalog.ended_prices
    WHERE model = {plan_model};
CREATE OR REPLACE VIEW closed_usage AS SELECT NULL::timestamptz AS closed_until, {frontier}::timestamptz AS frontier;
-- Where accounts pool nothing is compared (`refuse_pools`).
CREATE FUNCTION pool_parts(of_month date, of_accounts text[])
RETURNS TABLE (
    account text, meter text, currency text, price_version bigint, ladder_start numeric, ladder_end numeric,
    ladder_total numeric, has_above boolean, quantities numeric[], place integer
) LANGUAGE sql STABLE AS $$
    SELECT NULL, NULL, NULL, NULL::bigint, NULL::numeric, NULL::numeric, NULL::numeric, NULL::boolean, NULL::numeric[],
           NULL::integer
    WHERE false
$$;
"""
_POOLED = """
    SELECT parent, greatest(first_month, date_trunc('month', since)::date) AS month
    FROM catalog.pools LEFT JOIN LATERAL (
        SELECT timezone FROM catalog.account_zones AS zones
        WHERE zones.account = pools.account
          AND holds_from < first_month::timestamp AT TIME ZONE 'UTC' + interval '1 day'
        ORDER BY holds_from DESC LIMIT 1
    ) AS zone ON true
    CROSS JOIN LATERAL (
        SELECT %(start)s AT TIME ZONE coalesce(timezone, 'UTC') AS since,
               %(end)s AT TIME ZONE coalesce(timezone, 'UTC') AS until
    ) AS bounds
    WHERE first_month < until AND (end_month IS NULL OR end_month > greatest(first_month::timestamp, since))
    ORDER BY month, parent LIMIT 1
"""
_ACCOUNTS = (
    "DELETE FROM account_history WHERE account = ANY (%(accounts)s)",
    "DELETE FROM account_zones WHERE account = ANY (%(accounts)s)",
    """
    INSERT INTO accounts SELECT given, given FROM unnest(%(accounts)s::text[]) AS given
    WHERE given NOT IN (SELECT account FROM accounts)
    """,
)
_ACCOUNT = """
INSERT INTO account_history (
    account, holds_from, holds_until, name, plan, currency, parent, effective_from, changed_at
)
VALUES (
    %(account)s, '-infinity', 'infinity', coalesce(%(name)s, %(account)s), %(plan)s, %(currency)s, %(parent)s,
    %(effective_from)s, %(effective_from)s
)
"""
_ZONE = "INSERT INTO account_zones (account, holds_from, timezone) VALUES (%(account)s, '-infinity', %(timezone)s)"
_OF_KEY = "WHERE (plan, currency, effective_from) = (%(plan)s, %(currency)s, %(effective_from)s)"
_TERMS = (
    f"DELETE FROM prices {_OF_KEY}",
    f"DELETE FROM ended_prices {_OF_KEY}",
    f"INSERT INTO prices VALUES (%(plan)s, '{PLAN_MODEL}', %(currency)s, %(effective_from)s, %(terms)s::jsonb)",
)
_RUNG = f"INSERT INTO price_ladders ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"
# No month before has usage or a fee: of what is assumed, each row of live terms is there, or one that begins with it.
_FIRST = """
SELECT least(
    (SELECT min(month) FROM {live}.usage_months), (SELECT min(month) FROM usage_months),
    greatest(
        (
            SELECT min(effective_from)
            FROM (SELECT effective_from FROM prices UNION ALL SELECT effective_from FROM ended_prices) AS terms
        ),
        least(
            (SELECT min(effective_from) FROM account_history),
            (SELECT min(effective_from) FROM catalog.account_history)
        )
    )::date
)
"""
AROUND = timedelta(days=1)
"""No month of an account's calendar begins further from that of UTC, nor does it end there."""


@dataclass(frozen=True)
class ComparedBills:
    """Months of accounts that lie wholly in the compared time.

    `totals` (TOTAL_KEY with live, replayed and difference amount) of all; `lines` (LINE_KEY, the same of quantity and
    amount) that differ. `left_out`: how many lie in it only partly, and have lines that only a whole month has.
    """

    totals: list[Row] = field(default_factory=list)
    lines: list[Row] = field(default_factory=list)
    left_out: int = 0


class _InSchema(psycopg.Cursor[Row]):
    """Reads the catalog's copy in a schema."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(connection, row_factory=dict_row)
        self._catalog = f"{sql.Identifier(schema).as_string(connection)}."

    def execute(self, query: Any, *arguments: Any, **named: Any) -> _InSchema:
        return super().execute(_CATALOG.sub(self._catalog, query), *arguments, **named)


def refuse_pools(database: psycopg.Connection[Any], start: datetime, end: datetime) -> None:
    """Raises Refused where accounts pool in a month, by their calendar, of which `[start, end)` has any part."""
    parameters = {"start": start, "end": end}
    if (found := database.execute(_POOLED, parameters).fetchone()) is not None:
        parent, month = found
        raise Refused(
            f"accounts pool below {parent} in {month_text(month)}: what other prices make of a total that they share "
            "is not computed; compare a time before the pool begins"
        )


def compared_bills(  # noqa: PLR0917  # both sides, and what is compared of them
    cursor: psycopg.Cursor[Any],
    schemas: tuple[str, str],
    assumed: Assumptions,
    prices: pa.Table,
    frontier: datetime | None,
    start: datetime,
    end: datetime,
) -> ComparedBills:
    """Bills of the months in `[start, end)` of two schemas, the live and the replayed one, which the search path has.

    `prices` (streams.PRICES): all versions that the replay priced by. It adds to the schema of the replay what bills
    are computed from.
    """
    live, replayed = schemas
    _copy(cursor, live, assumed, prices, frontier)
    first = cursor.execute(sql.SQL(_FIRST).format(live=sql.Identifier(live))).fetchone()
    if frontier is None or first is None or first[0] is None:
        return ComparedBills()
    found = _Found(start, end)
    reader, of_replay = cursor.connection.cursor(row_factory=dict_row), _InSchema(cursor.connection, replayed)
    # The evening before the first of a month by UTC may belong to the month before, where the account is.
    for month in _months(max(_day(start), first[0] - AROUND), min(_day(end, AROUND), _day(frontier, AROUND))):
        _look_into(cursor, live)
        lived = read_month(reader, month)
        _look_into(cursor, replayed)
        found.add(month, lived, read_month(of_replay, month))
    return ComparedBills(found.totals(), found.lines(), found.left_out)


def _copy(
    cursor: psycopg.Cursor[Any], live: str, assumed: Assumptions, prices: pa.Table, frontier: datetime | None
) -> None:
    cursor.execute(_MONTHS)
    of_live = {"live": sql.Identifier(live), "frontier": sql.Literal(frontier), "plan_model": sql.Literal(PLAN_MODEL)}
    cursor.execute(sql.SQL(_COPIES).format(**of_live))
    accounts = assumed.accounts.to_pylist()
    for statement in _ACCOUNTS:
        cursor.execute(statement, {"accounts": [row["account"] for row in accounts]})
    cursor.executemany(_ACCOUNT, accounts)
    cursor.executemany(_ZONE, accounts)
    of_plans = assumed.prices.filter(pc.equal(assumed.prices["model"], PLAN_MODEL)).to_pylist()
    for statement in _TERMS:
        cursor.executemany(statement, of_plans)
    # An assumed version has the number that usage has (`price_versions`).
    version = pl.col("price_version")
    rungs = ladders(prices).with_columns(
        price_version=pl.when(version > 0).then(version).otherwise(ASSUMED_VERSIONS_FROM - version)
    )
    cursor.executemany(_RUNG, rungs.rows())
    cursor.execute("ANALYZE usage_months, price_ladders")


class _Found:
    """Lines of months that lie wholly in `[start, end)`, by LINE_KEY and side."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self._start, self._end = start, end
        self._every: defaultdict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
        self._left_out: set[tuple[str, date]] = set()

    @property
    def left_out(self) -> int:
        return len(self._left_out)

    def add(self, month: date, live: Month, replayed: Month) -> None:
        both = (live.periods, replayed.periods)
        for side, bill in (("live", live), ("replayed", replayed)):
            for line in bill.lines:
                account = line["account"]
                known = [periods[account] for periods in both if account in periods]
                if all(self._has(period) for period in known):
                    self._sum(side, month, line)
                elif any(self._meets(period) for period in known) and _depends_on_month(line):
                    self._left_out.add((account, month))

    def lines(self) -> list[Row]:
        rows = (self._row(LINE_KEY, key, found) for key, found in self._every.items())
        return sorted((row for row in rows if _differs(row)), key=lambda row: _place(row, LINE_KEY))

    def totals(self) -> list[Row]:
        sums: defaultdict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
        for key, found in self._every.items():
            place = dict(zip(LINE_KEY, key, strict=True))
            for side, line in found.items():
                total = sums[tuple(place[name] for name in TOTAL_KEY)].setdefault(side, {"amount": None})
                total["amount"] = _sum(total["amount"], line["amount"])
        rows = (self._row(TOTAL_KEY, key, found, ("amount",)) for key, found in sums.items())
        return sorted(rows, key=lambda row: _place(row, TOTAL_KEY))

    def _has(self, period: Period) -> bool:
        return self._start <= period.start and period.end <= self._end

    def _meets(self, period: Period) -> bool:
        return period.start < self._end and self._start < period.end

    def _sum(self, side: str, month: date, line: Row) -> None:
        key = (month_text(month), *(line[name] for name in LINE_KEY[1:]))
        known = self._every[key].setdefault(side, {"quantity": Decimal(0), "amount": None})
        known["quantity"] = EXACT.add(known["quantity"], line["quantity"])
        known["amount"] = _sum(known["amount"], line["amount"])

    @staticmethod
    def _row(
        names: tuple[str, ...],
        key: tuple[Any, ...],
        found: Mapping[str, Row],
        numbers: tuple[str, ...] = ("quantity", "amount"),
    ) -> Row:
        row: Row = dict(zip(names, key, strict=True))
        for name in numbers:
            nothing = Decimal(0) if name == "quantity" else None
            live, replayed = (found[side][name] if side in found else nothing for side in ("live", "replayed"))
            row |= {f"live_{name}": live, f"replayed_{name}": replayed}
            row[f"difference_{name}"] = EXACT.subtract(replayed or Decimal(0), live or Decimal(0))
        return row


def _depends_on_month(line: Row) -> bool:
    return line["kind"] in _OF_A_MONTH or line["tier"] == TIER_INCLUDED


def _differs(row: Row) -> bool:
    return any(row[f"live_{name}"] != row[f"replayed_{name}"] for name in ("quantity", "amount"))


def _place(row: Row, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple((row[name] is None, row[name] or "") for name in names)


def _sum(amount: Decimal | None, other: Decimal | None) -> Decimal | None:
    if amount is None or other is None:
        return other if amount is None else amount
    return EXACT.add(amount, other)


def _months(first: date, last: date) -> Iterator[date]:
    month = first.replace(day=1)
    while month <= last:
        yield month
        month = (month + timedelta(days=31)).replace(day=1)


def _day(instant: datetime, later: timedelta = timedelta()) -> date:
    try:
        return (instant + later).date()
    except OverflowError:
        return instant.date()


def _look_into(cursor: psycopg.Cursor[Any], schema: str) -> None:
    cursor.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
