"""`GET /v1/corrections` and `/v1/stragglers`: what changed closed windows, and what came after their grace."""

from __future__ import annotations

from starlette.responses import Response

from api.answers import answer, columns_of
from api.parameters import Parameters
from api.read_request import STAFF, ReadRequest, page_of, sees_staff
from jobs.queries import corrections as corrected
from jobs.queries import stragglers as late
from jobs.queries.corrections import CorrectionQuery, corrections_since
from jobs.queries.pages import Page
from jobs.queries.stragglers import StragglerQuery, straggler_rows
from metering.vocabulary import Decision, UsageCause

CORRECTIONS = ("from", "to", "account", "cause", "since", "limit")
STRAGGLERS = ("from", "to", "account", "decision", "limit", "cursor")
MAX_NUMBER = 10**18 - 1
"""Of a correction."""


async def corrections(read_request: ReadRequest) -> Response:
    """Rows with the columns of `weir corrections` and `number`, in its order. `next`: the next request's `since`."""
    given = Parameters.of(read_request.request.query_params, CORRECTIONS)
    since, limit = given.number("since", 0, MAX_NUMBER, 0), given.limit()
    query = CorrectionQuery(*given.range(), given.accounts(read_request.key), given.choice("cause", UsageCause))
    found, frontier = await read_request.of(lambda database: list(corrections_since(database, query, since, limit)))
    last = found[-1]["number"] if found else since
    rows = columns_of(found, ("number", *corrected.COLUMNS))
    return answer(read_request.request, rows, frontier, {"next": last})


async def stragglers(read_request: ReadRequest) -> Response:
    """Rows with the columns of `weir stragglers`, by window; a key that names accounts is not shown those of STAFF."""
    given = Parameters.of(read_request.request.query_params, STRAGGLERS)
    limit, after = given.limit(), given.cursor(len(late.KEY))
    accounts, decision = given.accounts(read_request.key), given.choice("decision", Decision)
    query = StragglerQuery(*given.range(), accounts, decision, Page(limit + 1, after))
    found, frontier = await read_request.of(lambda database: list(straggler_rows(database, query)))
    rows, following = page_of(found, limit, lambda row: [row[name] for name in late.KEY])
    columns = [name for name in late.COLUMNS if sees_staff(read_request.key) or name not in STAFF]
    return answer(read_request.request, columns_of(rows, columns), frontier, following)
