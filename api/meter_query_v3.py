"""OpenMeter's v3 query of a meter: `POST /api/v3/openmeter/meters/{slug}/query`. Values are texts."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from api.answers import tagged, to_json
from api.csv_answer import as_csv, wants_csv
from api.meter_query import rows_of
from api.meter_query_request import SUBJECT, WINDOWS, MeterQueryRequest, body_of, object_of, query_request_in
from api.parameters import bad_request, choice_of
from api.read_request import ReadRequest
from jobs.queries.periods import Window

MEMBERS = ("from", "to", "granularity", "time_zone", "group_by_dimensions", "filters")
NAMES = {
    "windowSize": "granularity",
    "windowTimeZone": "time_zone",
    "groupBy": "group_by_dimensions",
    "filterGroupBy": "filters.dimensions",
    SUBJECT: "filters.dimensions.subject",
}
"""Members of v1, as v3 calls them."""
_SIZES = {window: size for size, window in WINDOWS.items()}


async def meter_query_v3(read_request: ReadRequest) -> Response:
    """OpenMeter's answer, as JSON or CSV: the account is the dimension `subject`."""
    query_request = await _query_request(read_request)
    rows, frontier = await rows_of(read_request, query_request)
    data = [{"value": row.quantity, "from": row.start, "to": row.end, "dimensions": dict(row.groups)} for row in rows]
    if wants_csv(read_request.request):
        groups = sorted(query_request.groups, key=lambda name: name != SUBJECT)
        lines = ([row.start, row.end, *(row.groups[name] for name in groups), row.quantity] for row in rows)
        return as_csv(read_request.request.path_params["slug"], ("from", "to", *groups, "value"), lines, frontier)
    shown = {"from": query_request.start, "to": query_request.end, "data": data}
    shown = {name: value for name, value in shown.items() if value is not None}
    return tagged(read_request.request, to_json(shown), frontier, shown)


async def _query_request(read_request: ReadRequest) -> MeterQueryRequest:
    given = await body_of(read_request.request, MEMBERS)
    granularity = given.get("granularity")
    if granularity is not None and not isinstance(granularity, str):
        raise bad_request("granularity", "It must be a text.", "body")
    filters = object_of(given.get("filters"), "filters", "body")
    if unknown := sorted(filters.keys() - {"dimensions"}):
        raise bad_request(f"filters.{unknown[0]}", "There is no such member; there is dimensions.", "body")
    dimensions = object_of(filters.get("dimensions"), "filters.dimensions", "body")
    wanted = {name: _wanted(name, value) for name, value in dimensions.items()}
    return query_request_in(
        {
            "from": given.get("from"),
            "to": given.get("to"),
            "windowSize": granularity and _SIZES[choice_of("granularity", granularity, Window)].value,
            "windowTimeZone": given.get("time_zone"),
            "groupBy": given.get("group_by_dimensions"),
            SUBJECT: wanted.pop(SUBJECT, None),
            "filterGroupBy": wanted,
        },
        read_request,
        "body",
        NAMES,
    )


def _wanted(name: str, value: Any) -> Any:
    operators = object_of(value, f"filters.dimensions.{name}", "body")
    if len(operators) != 1 or not operators.keys() <= {"eq", "in"}:
        raise bad_request(f"filters.dimensions.{name}", "Only eq and in are supported, one of them.", "body")
    (wanted,) = operators.values()
    values = wanted if isinstance(wanted, list) else [wanted]
    if not values or not all(values):
        # No account at all would be all of them.
        raise bad_request(f"filters.dimensions.{name}", "It must have a value, and no empty one.", "body")
    return wanted
