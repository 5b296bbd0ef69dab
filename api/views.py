"""`GET /v1/views/{name}`: what a declared view measures, in the windows of `weir view`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from api.answers import answer
from api.csv_answer import as_csv, wants_csv
from api.parameters import Parameters, bad_request, instant_of
from api.problems import Problem
from api.read_request import ReadRequest, page_of
from jobs.queries.reading import Database
from jobs.queries.view_windows import ViewWindows, WindowMistake
from jobs.queries.views import (
    Hop,
    Row,
    Span,
    Whole,
    Windows,
    bytes_merged,
    declared_views,
    flat,
    flat_columns,
    measured_since,
    measured_until,
    order,
    view_rows,
)
from jobs.runtime.clock import MachineClock
from metering.api_keys import ApiKey
from metering.views import View

PARAMETERS = ("from", "to", "window", "hop", "session", "sliding", "account", "limit", "cursor")
ACCOUNT = "account"
MAX_MERGED_BYTES = 64 * 2**20
"""Of panes for an answer, each once for each window that it is in: a second of CPU or two, while other reads wait."""


@dataclass(frozen=True)
class _Found:
    view: View
    rows: list[Row]
    span: Span | None
    since: datetime | None
    frontier: datetime | None

    def cursor_key(self, row: Row) -> list[Any]:
        """The range goes with it, which by default moves with the clock, and the definition: pages are of one."""
        assert self.span is not None, "no range has no rows"
        return [
            self.view.version,
            self.span.start,
            self.span.end,
            row["window_start"],
            *(row[name] for name in self.view.by),
        ]


async def view(read_request: ReadRequest, max_merged_bytes: int = MAX_MERGED_BYTES) -> Response:
    """`data`: rows with the columns of `weir view NAME`, by window and key. `since`: the first minute it has, if any.

    Raises Problem: 404 for a view that is not measured, 403 where the key names accounts and the view does not say
    whose its outcomes are, 400 for windows that cannot be shown, or too many.
    """
    given = Parameters.of(read_request.request.query_params, PARAMETERS)
    name = read_request.request.path_params["name"]
    windows, limit, accounts = _windows(given), given.limit(), given.accounts(read_request.key)
    now = MachineClock().now()

    def read(database: Database) -> _Found:
        declared = _readable(database, read_request.key, name, accounts)
        since, frontier = measured_since(database, declared), measured_until(database)
        try:
            resolved = windows.resolve(database, now)
        except WindowMistake as mistake:
            raise _refused(mistake) from None
        if resolved is None:
            return _Found(declared, [], None, since, frontier)
        version, *after = given.cursor(4 + len(declared.by)) or (None,)
        if after and version != declared.version:
            raise bad_request("cursor", "The view was declared otherwise since: begin with its first page.")
        shown, span = _page(resolved[0], replace(resolved[1], accounts=accounts), after)
        if bytes_merged(database, declared, shown, span) > max_merged_bytes:
            raise bad_request(
                "from",
                "Too much would be merged, as each minute of a key counts in each window that it is in: ask for less "
                "time, or for a longer hop.",
            )
        rows = view_rows(database, declared, shown, span)
        if after:
            reached = order(instant_of("cursor", after[2] or ""), after[3:])
            rows = [row for row in rows if order(row["window_start"], (row[key] for key in declared.by)) > reached]
        return _Found(declared, rows, span, since, frontier)

    found = await read_request.reader.run(read_request.key, read)
    rows, following = page_of(found.rows, limit, found.cursor_key)
    if wants_csv(read_request.request):
        columns = flat_columns(found.view)
        lines = ([line[column] for column in columns] for line in (flat(found.view, row) for row in rows))
        return as_csv(name, columns, lines, found.frontier, _link(read_request, following["next"]))
    return answer(read_request.request, rows, found.frontier, {"since": found.since, **following})


def _windows(given: Parameters) -> ViewWindows:
    start, end = given.range()
    window, hop, session = (given.duration(name) for name in ("window", "hop", "session"))
    try:
        return ViewWindows(window, hop, session, start, end, is_sliding=given.flag("sliding"))
    except WindowMistake as mistake:
        raise _refused(mistake) from None


def _refused(mistake: WindowMistake) -> Problem:
    return bad_request(mistake.field, mistake.sentence(str))


def _readable(database: Database, key: ApiKey, name: str, accounts: tuple[str, ...]) -> View:
    declared = declared_views(database).get(name)
    if declared is None:
        raise Problem(
            HTTPStatus.NOT_FOUND, f"No view {name!r} is measured: `views` of the configuration declares them."
        )
    if ACCOUNT not in declared.by:
        if key.accounts:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"The view {name} adds up outcomes of all accounts: the key {key.id} names some, and reads views by "
                "account.",
            )
        if accounts:
            raise bad_request(ACCOUNT, f"The view {name} is not by account.")
    return declared


def _page(windows: Windows, span: Span, after: Sequence[Any]) -> tuple[Windows, Span]:
    """The windows and the range that are left for a page."""
    if not after:
        return windows, span
    start, end, reached = (instant_of("cursor", value or "") for value in after[:3])
    if isinstance(windows, Hop):
        start = max(start, reached)
    if isinstance(windows, Whole):
        windows = Whole(start, end)
    return windows, replace(span, start=start, end=end)


def _link(read_request: ReadRequest, cursor: str | None) -> dict[str, str]:
    """CSV has no member `next`: the next page is a link (RFC 8288)."""
    if cursor is None:
        return {}
    return {"Link": f'<{read_request.request.url.include_query_params(cursor=cursor)}>; rel="next"'}
