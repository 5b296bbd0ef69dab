"""OpenMeter's queries of one meter: `GET /api/v1/meters` and `GET|POST /api/v1/meters/{slug}/query`.

A meter's slug is its name. `subject` is the account; further groups are the model and the configured dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from api.account_windows import refuse_other_windows
from api.answers import tagged, to_json
from api.csv_answer import as_csv, wants_csv
from api.meter_query_request import MAX_ROWS, SIZE_OF_PERIOD, SUBJECT, MeterQueryRequest, WindowSize, query_request_of
from api.parameters import Parameters, bad_request
from api.problems import Problem
from api.read_request import ReadRequest
from api.usage import refuse_unknown
from jobs.billing_progress import Row
from jobs.queries.reading import Database
from jobs.queries.usage import quantity_rows, span_of
from jobs.queries.usage_keys import Key
from metering.period_meters import Aggregation, Period

_METERS = "SELECT meter, unit, sums, aggregation, period FROM meters ORDER BY meter"
_METER = "SELECT period FROM meters WHERE meter = %s"
_AGGREGATIONS = {
    Aggregation.UNIQUE: "UNIQUE_COUNT",
    Aggregation.MIN: "MIN",
    Aggregation.MAX: "MAX",
    Aggregation.LATEST: "LATEST",
}
"""OpenMeter's names."""


@dataclass(frozen=True)
class MeterRow:
    """A quantity of `[start, end)`; `groups` are what was grouped by, in the order that was asked for."""

    start: datetime
    end: datetime
    groups: Mapping[str, str | None]
    quantity: Decimal


async def meters(read_request: ReadRequest) -> Response:
    """OpenMeter's list of meters."""
    Parameters.of(read_request.request.query_params, ())
    found, frontier = await read_request.of(
        lambda database: [_meter(row) for row in database.execute(_METERS).fetchall()]
    )
    return tagged(read_request.request, to_json(found), frontier, found)


async def meter_query(read_request: ReadRequest) -> Response:
    """OpenMeter's answer, as JSON or CSV: values are numbers, as its clients expect."""
    query_request = await query_request_of(read_request)
    rows, frontier = await rows_of(read_request, query_request)
    data = [_row(row) for row in rows]
    if wants_csv(read_request.request):
        groups = [name for name in query_request.groups if name != SUBJECT]
        columns = ("window_start", "window_end", SUBJECT, *groups, "value")
        named = ([row[name] for name in ("windowStart", "windowEnd", SUBJECT)] for row in data)
        lines = ([*first, *row["groupBy"].values(), row["value"]] for first, row in zip(named, data, strict=True))
        return as_csv(read_request.request.path_params["slug"], columns, lines, frontier)
    document = {
        "from": query_request.start,
        "to": query_request.end,
        "windowSize": query_request.window_size,
        "data": data,
    }
    shown = {name: value for name, value in document.items() if value is not None}
    return tagged(read_request.request, to_json(shown), frontier, shown)


async def rows_of(
    read_request: ReadRequest, query_request: MeterQueryRequest
) -> tuple[list[MeterRow], datetime | None]:
    """What a meter has, and the frontier. Raises Problem: 404 without the meter, 400 for too many rows."""
    slug = read_request.request.path_params["slug"]

    def find(database: Database) -> tuple[list[Row], tuple[datetime, datetime] | None]:
        if (meter := database.execute(_METER, [slug]).fetchone()) is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"There is no meter {slug!r}: GET /api/v1/meters lists them.")
        query = query_request.usage_query(slug, meter["period"])
        refuse_unknown(database, query_request.dimensions, query_request.name("groupBy"))
        in_windows = query_request.window_size is not None
        is_bounded = in_windows or None not in (query_request.start, query_request.end)
        found = list(quantity_rows(database, query, in_windows=in_windows))
        if query.is_by_days:
            refuse_other_windows(database, query_request, query, found)
        return found, None if is_bounded else span_of(database, query_request.subjects)

    (rows, bounds), frontier = await read_request.of(find)
    if len(rows) > MAX_ROWS:
        name = query_request.name("windowSize")
        raise bad_request(name, f"The answer has more than {MAX_ROWS} rows: ask for less, or larger windows.")
    first, last = bounds or (frontier or datetime.min.replace(tzinfo=UTC),) * 2
    return [
        MeterRow(
            row.get("window_start") or query_request.start or first,
            row.get("window_end") or query_request.end or last,
            {name: row[Key.ACCOUNT.value if name == SUBJECT else name] for name in query_request.groups},
            row["quantity"],
        )
        for row in rows
    ], frontier


def _row(row: MeterRow) -> dict[str, Any]:
    return {
        "value": _number(row.quantity),
        "windowStart": row.start,
        "windowEnd": row.end,
        "subject": row.groups.get(SUBJECT),
        "groupBy": {name: value for name, value in row.groups.items() if name != SUBJECT},
    }


def _number(quantity: Decimal) -> int | float:
    """What OpenMeter's clients read: a number, which they hold in 64 bits. `/v1/usage` has every digit."""
    return int(quantity) if quantity == int(quantity) else float(quantity)


def _meter(row: Row) -> dict[str, Any]:
    return {
        "id": row["meter"],
        "slug": row["meter"],
        "description": f"Unit: {row['unit']}.",
        "eventType": "*",
        "aggregation": _aggregation(row),
        **({} if row["sums"] is None else {"valueProperty": f"$.{row['sums']}"}),
        "windowSize": (WindowSize.MINUTE if row["period"] is None else SIZE_OF_PERIOD[Period(row["period"])]).value,
    }


def _aggregation(row: Row) -> str:
    if row["aggregation"] is not None:
        return _AGGREGATIONS[Aggregation(row["aggregation"])]
    return "COUNT" if row["sums"] is None else "SUM"
