"""`GET /v1/usage`: quantity and amount by minute, hour, day or month, as `weir usage` lists them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from starlette.responses import Response

from api.answers import answer, columns_of
from api.parameters import Parameters, bad_request, instant_of
from api.read_request import ReadRequest, page_of
from jobs.billing_progress import Progress, Row
from jobs.queries.pages import Page
from jobs.queries.periods import UTC_ZONE, Window
from jobs.queries.reading import Database
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key, dimensions_of, keys_of, unknown_dimensions, words_of

PARAMETERS = (
    *("from", "to", "window", "group_by", "account", "model", "meter", "timezone", "roll_up"),
    *("limit", "cursor"),
)
LONG = (Window.DAY, Window.MONTH)


async def usage(read_request: ReadRequest) -> Response:
    """Rows with the columns of `weir usage` and `late_quantity, corrected`, by window and key."""
    given = Parameters.of(read_request.request.query_params, PARAMETERS)
    query, limit = query_of(given, read_request), given.limit()
    after = given.cursor(len(query.sql_keys))
    query = replace(query, page=Page(limit + 1, after), start=_start(query, after))

    def read(database: Database, progress: Progress) -> list[Row]:
        refuse_unknown(database, query.dimensions)
        return list(usage_rows(database, query, progress))

    found, frontier = await read_request.with_progress(read)
    rows, following = page_of(found, limit, query.key_of)
    return answer(read_request.request, columns_of(rows, query.columns), frontier, following)


def query_of(given: Parameters, read_request: ReadRequest) -> UsageQuery:
    """The windows that are asked for. Raises Problem."""
    start, end = given.range()
    words = words_of(given.given.get("group_by", ",".join(Key)))
    dimensions, zone = dimensions_of(words), given.zone("timezone")
    window = given.choice("window", Window, Window.MINUTE) or Window.MINUTE
    if dimensions and window not in LONG:
        raise bad_request("group_by", f"{', '.join(dimensions)}: only days and months have it: window=P1D or P1M.")
    if dimensions and zone is not None:
        raise bad_request("timezone", f"{', '.join(dimensions)}: is kept by each account's own days: leave it out.")
    rolls_up = given.flag("roll_up")
    if rolls_up and Key.ACCOUNT not in keys_of(words):
        raise bad_request("roll_up", "It sums into accounts: add account to group_by.")
    named = {key.value: given.texts(key.value) for key in (Key.MODEL, Key.METER)}
    return UsageQuery(
        start,
        end,
        window,
        keys_of(words),
        dimensions,
        given.accounts(read_request.key),
        zone or UTC_ZONE,
        rolls_up,
        has_details=True,
        filters={name: values for name, values in named.items() if values},
    )


def refuse_unknown(database: Database, dimensions: tuple[str, ...], field: str = "group_by") -> None:
    """Raises Problem (400) for a dimension that is neither configured now nor in any day."""
    unknown, known = unknown_dimensions(database, dimensions)
    if unknown:
        raise bad_request(field, f"{', '.join(unknown)}: can only be any of {', '.join(known)}.")


def _start(query: UsageQuery, after: tuple[Any, ...]) -> datetime | None:
    """Nothing before the last row's minute or hour needs to be read again."""
    if not after or query.window in LONG:
        return query.start
    reached = instant_of("cursor", str(after[0]))
    return reached if query.start is None else max(query.start, reached)
