"""`GET /v1/bills` and `/v1/prices`: what accounts owe for a month so far, and what they pay for a unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby
from typing import Any

from starlette.responses import Response

from api.answers import answer, columns_of
from api.parameters import Parameters, bad_request
from api.read_request import ReadRequest, page_of
from jobs.billing_progress import Progress, Row
from jobs.queries import contracts
from jobs.queries.bills import PAGE_KEY, Period, read_month, read_totals
from jobs.queries.contracts import ContractQuery, contract_rows
from jobs.queries.pages import Page
from jobs.queries.reading import Database
from metering.invoices import FEES
from metering.lateness import window_state
from metering.meters import OfMeter
from metering.windows import Window

BILLS = ("month", "account", "limit", "cursor")
PRICES = ("at", "account", "plan", "model", "meter", "limit", "cursor")
LINE = (
    *("account", "model", "meter", "currency", "price_version", "kind", "tier", "unit_price", "quantity", "amount"),
    *("next_unit_price", "pooled", "state"),
)
FEE = ("account", "plan", "currency", "fee", "days", "amount", "state")
TOTAL = (
    *("account", "name", "parent", "timezone", "period_start", "period_end", "currency", "amount", "unpriced_lines"),
    "state",
)
_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")


@dataclass(frozen=True)
class _Bills:
    lines: list[Row]
    totals: list[Row]
    periods: Mapping[str, Period]
    frontier: datetime | None
    closed: OfMeter[datetime | None]

    def state_of(self, row: Row) -> str:
        """How far the account's month has come: of one meter, or (a total) of all."""
        period = self.periods[row["account"]]
        closed_until = self.closed.of(row.get("meter") or "")
        window = Window(period.start, period.end)
        state = window_state(window, None, self.frontier, corrected=row["corrected"], closed_before=closed_until)
        return state.value


async def bills(read_request: ReadRequest) -> Response:
    """`data`: the lines (LINE) of a month's usage. `fees`: what plans cost beside it (FEE). `totals`: of the accounts
    that have any of these on the page, of their whole month.

    A month is each account's own, from `period_start` to before `period_end`. A line is of one price version, or of one
    tier of it; its `amount` is null for usage without a price, and a total leaves it out. A page has at most
    `limit` price versions, each with all of its lines; all fees of an account in one currency count as one more.
    """
    given = Parameters.of(read_request.request.query_params, BILLS)
    month, limit, accounts = month_in(given, "month"), given.limit(), given.accounts(read_request.key)
    page = Page(limit + 1, given.cursor(len(PAGE_KEY)))

    def read(database: Database, progress: Progress) -> _Bills:
        found = read_month(database, month, accounts or None, page)
        totals = read_totals(database, month, list(found.periods))
        return _Bills(list(found.lines), totals, found.periods, *progress)

    found, frontier = await read_request.with_progress(read)
    versions, following = page_of(_by_version(found.lines), limit, lambda rows: _page_key(rows[0]))
    lines = [line for rows in versions for line in rows]
    shown = {line["account"] for line in lines}
    totals = [_total(found, row) for row in found.totals if row["account"] in shown]
    stated = [{**line, "state": found.state_of(line)} for line in lines]
    data = columns_of([line for line in stated if line["kind"] not in FEES], LINE)
    fees = [_fee(line) for line in stated if line["kind"] in FEES]
    return answer(read_request.request, data, frontier, {"fees": fees, "totals": totals, **following})


def _fee(line: Row) -> dict[str, Any]:
    named = {"plan": line["tier"], "fee": line["kind"], "days": int(line["quantity"])}
    whole = {**line, **named}
    return {name: whole[name] for name in FEE}


def _by_version(lines: Iterable[Row]) -> Iterator[list[Row]]:
    return (list(rows) for _, rows in groupby(lines, _page_key))


def _page_key(line: Row) -> list[Any]:
    return [line[name] for name in PAGE_KEY]


async def prices(read_request: ReadRequest) -> Response:
    """Rows with the columns of `weir catalog contracts`: what is in force at `at`, or now."""
    given = Parameters.of(read_request.request.query_params, PRICES)
    limit, after = given.limit(), given.cursor(len(contracts.KEY))
    plan, model, meter = (given.text(name) for name in ("plan", "model", "meter"))
    page = Page(limit + 1, after)
    query = ContractQuery(given.instant("at"), given.accounts(read_request.key), plan, model, meter, page)
    found, frontier = await read_request.of(lambda database: list(contract_rows(database, query)))
    rows, following = page_of(found, limit, lambda row: [row[name] for name in contracts.KEY])
    return answer(read_request.request, columns_of(rows, contracts.COLUMNS), frontier, following)


def month_in(given: Parameters, name: str) -> date:
    """The first day of the month that a parameter names. Raises Problem (400)."""
    found = _MONTH.fullmatch(given.text(name) or "")
    if found is None or not 1971 <= int(found[1]) < 9999:
        raise bad_request(name, "It must be a month such as 2026-10.")
    return date(int(found[1]), int(found[2]), 1)


def _total(found: _Bills, row: Row) -> dict[str, Any]:
    period = found.periods[row["account"]]
    # An account above that the key does not name is not named here either.
    parent = period.parent if period.parent in found.periods else None
    named = {"name": period.name, "parent": parent, "timezone": period.timezone}
    state = found.state_of(row)
    whole = {**row, **named, "period_start": period.start, "period_end": period.end, "state": state}
    return {name: whole[name] for name in TOTAL}
