"""`GET /v1/thresholds`, `/v1/watches`, `/v1/watches/{name}/hits` and `/v1/patterns/{name}/matches`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from api.answers import answer, columns_of
from api.parameters import Parameters, bad_request
from api.problems import Problem
from api.read_request import ReadRequest, page_of
from jobs.analytics.watches.store import HIT_COLUMNS, HIT_KEY, UnknownWatch, hit_rows, watch_rows
from jobs.queries.limit_lists import THRESHOLD_COLUMNS, THRESHOLD_KEY, threshold_rows
from jobs.queries.pages import Page
from jobs.queries.patterns import MATCH_COLUMNS, MATCH_KEY, Matches, UnknownPattern, is_by_account, match_rows
from jobs.queries.reading import Database
from jobs.queries.views import measured_until
from metering.api_keys import ApiKey

THRESHOLDS = ("account", "limit", "cursor")
WATCHES = ("limit", "cursor")
HITS = ("from", "to", "account", "limit", "cursor")
MATCHES = ("from", "to", "account", "all_versions", "limit", "cursor")
WATCH_COLUMNS = ("name", "condition", "account", "state", "hits", "added_at")
ACCOUNT = "account"


async def thresholds(read_request: ReadRequest) -> Response:
    """Each threshold that was ever crossed, with its last version: whether it is crossed now."""
    given = Parameters.of(read_request.request.query_params, THRESHOLDS)
    limit, accounts = given.limit(), given.accounts(read_request.key)
    page = Page(limit + 1, given.cursor(len(THRESHOLD_KEY)))
    found, frontier = await read_request.of(lambda database: list(threshold_rows(database, accounts, page)))
    return _listed(read_request, found, frontier, limit, THRESHOLD_KEY, THRESHOLD_COLUMNS)


async def watches(read_request: ReadRequest) -> Response:
    """The watches that the key may see, by name: one that names accounts sees those of these accounts only."""
    given = Parameters.of(read_request.request.query_params, WATCHES)
    limit = given.limit()
    page = Page(limit + 1, given.cursor(1))
    found, frontier = await _read(read_request, lambda database: watch_rows(database, page))
    return _listed(read_request, found, frontier, limit, ("name",), WATCH_COLUMNS)


async def hits(read_request: ReadRequest) -> Response:
    """Rows with the columns of `weir watch hits`. Raises Problem: 404 for a watch that the key does not see."""
    given = Parameters.of(read_request.request.query_params, HITS)
    name = read_request.request.path_params["name"]
    (start, end), limit, accounts = given.range(), given.limit(), given.accounts(read_request.key)
    page = Page(limit + 1, given.cursor(len(HIT_KEY)))

    def read(database: Database) -> Iterable[Mapping[str, Any]]:
        try:
            return list(hit_rows(database, name, start, end, accounts=accounts, page=page))
        except UnknownWatch:
            raise Problem(HTTPStatus.NOT_FOUND, f"No watch {name!r} is stored: GET /v1/watches lists all.") from None

    found, frontier = await _read(read_request, read)
    return _listed(read_request, found, frontier, limit, HIT_KEY, HIT_COLUMNS)


async def matches(read_request: ReadRequest) -> Response:
    """Rows with the columns of `weir pattern matches`, the earliest first.

    Raises Problem: 404 for an unknown pattern, 403 where the key names accounts and matches have none.
    """
    given = Parameters.of(read_request.request.query_params, MATCHES)
    name = read_request.request.path_params["name"]
    (start, end), limit, accounts = given.range(), given.limit(), given.accounts(read_request.key)
    selection = Matches(name, accounts, start, end, given.flag("all_versions"))
    page = Page(limit + 1, given.cursor(len(MATCH_KEY)))

    def read(database: Database) -> Iterable[Mapping[str, Any]]:
        try:
            found = list(match_rows(database, selection, page))
        except UnknownPattern:
            raise Problem(
                HTTPStatus.NOT_FOUND, f"No pattern {name!r} is known: `patterns` of the configuration declares them."
            ) from None
        if not is_by_account(database, name):
            _refuse(read_request.key, name, accounts)
        return found

    found, frontier = await _read(read_request, read)
    return _listed(read_request, found, frontier, limit, MATCH_KEY, MATCH_COLUMNS)


def _refuse(key: ApiKey, name: str, accounts: Sequence[str]) -> None:
    if key.accounts:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"The pattern {name} looks at outcomes of all accounts together: the key {key.id} names some, and reads "
            "patterns by account.",
        )
    if accounts:
        raise bad_request(ACCOUNT, f"The pattern {name} is not by account.")


async def _read(
    read_request: ReadRequest, query: Callable[[Database], Iterable[Mapping[str, Any]]]
) -> tuple[list[Mapping[str, Any]], datetime | None]:
    """What analytics has recorded, and its frontier at that moment."""
    return await read_request.reader.run(
        read_request.key, lambda database: (list(query(database)), measured_until(database))
    )


def _listed(  # noqa: PLR0917  # what a page is made of
    read_request: ReadRequest,
    found: Iterable[Mapping[str, Any]],
    frontier: datetime | None,
    limit: int,
    key: Sequence[str],
    columns: Sequence[str],
) -> Response:
    rows, following = page_of(found, limit, lambda row: [row[name] for name in key])
    return answer(read_request.request, columns_of(rows, columns), frontier, following)
