"""`GET /v1/invoices` and `/v1/invoices/{id}`: what was issued, and the lines and states of one invoice."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from api.answers import answer, columns_of
from api.bills import month_in
from api.parameters import Parameters
from api.problems import Problem
from api.read_request import ReadRequest, page_of, sees_staff
from jobs.queries.invoices import LINE_COLUMNS, InvoiceQuery, invoice_document, invoice_rows

INVOICES = ("period", "account", "limit", "cursor")
COLUMNS = (
    *("invoice", "account", "kind", "period", "period_start", "period_end", "timezone", "currency", "total"),
    *("state", "issued_at", "hash", "replaces"),
)
EVENT_COLUMNS = ("state", "at", "hash")
"""Who closed a month, and why something stayed open, those who run Weir write for each other."""
STAFF_EVENT_COLUMNS = (*EVENT_COLUMNS, "made_by", "reason", "allowed")


async def invoices(read_request: ReadRequest) -> Response:
    """Rows with COLUMNS, by number; `hash` is that of the issue, and never changes."""
    given = Parameters.of(read_request.request.query_params, INVOICES)
    limit, after = given.limit(), given.cursor(1)
    period = None if given.text("period") is None else month_in(given, "period")
    query = InvoiceQuery(given.accounts(read_request.key), period, str(after[0]) if after else None, limit + 1)
    found, frontier = await read_request.of(lambda database: invoice_rows(database, query))
    rows, following = page_of(found, limit, lambda row: [row["invoice"]])
    return answer(read_request.request, columns_of(rows, COLUMNS), frontier, following)


async def invoice(read_request: ReadRequest) -> Response:
    """`data`: one invoice (COLUMNS) with its `lines` and `events`. Raises Problem: 404 where the key sees none."""
    Parameters.of(read_request.request.query_params, ())
    name = read_request.request.path_params["id"]
    found, frontier = await read_request.of(lambda database: invoice_document(database, name))
    if found is None or (read_request.key.accounts and found["account"] not in read_request.key.accounts):
        raise Problem(HTTPStatus.NOT_FOUND, f"There is no invoice {name!r} of an account that this key names.")
    names = STAFF_EVENT_COLUMNS if sees_staff(read_request.key) else EVENT_COLUMNS
    (data,) = columns_of([found], COLUMNS)
    data |= {"lines": columns_of(found["lines"], LINE_COLUMNS), "events": columns_of(found["events"], names)}
    return answer(read_request.request, data, frontier)
