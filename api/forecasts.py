"""`GET /v1/forecast`: what accounts will owe for a month, as `weir forecast`, in pages of accounts."""

from __future__ import annotations

from datetime import date
from typing import Any

from starlette.responses import Response

from api.answers import answer, columns_of
from api.bills import month_in
from api.parameters import Parameters
from api.read_request import ReadRequest, page_of
from jobs.billing_progress import Progress
from jobs.queries.forecasts import COLUMNS, forecast_rows
from jobs.queries.reading import Database

PARAMETERS = ("month", "account", "limit", "cursor")
_ACCOUNTS = """
    SELECT DISTINCT account FROM usage_months
    WHERE month = %(month)s AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(after)s::text IS NULL OR account > %(after)s)
    ORDER BY account LIMIT %(limit)s
"""


async def forecast(read_request: ReadRequest) -> Response:
    """Rows of `jobs.queries.forecasts.COLUMNS`. A page has at most `limit` accounts, each in all of its currencies."""
    given = Parameters.of(read_request.request.query_params, PARAMETERS)
    month, limit, accounts = month_in(given, "month"), given.limit(), given.accounts(read_request.key)
    after = next(iter(given.cursor(1)), None)

    def read(database: Database, progress: Progress) -> tuple[list[Any], dict[str, str | None]]:
        parameters = {"month": month, "accounts": list(accounts) or None, "after": after, "limit": limit + 1}
        found = [row["account"] for row in database.execute(_ACCOUNTS, parameters).fetchall()]
        shown, following = page_of(found, limit, lambda account: [account])
        return _rows(database, month, shown, progress), following

    (rows, following), frontier = await read_request.with_progress(read)
    return answer(read_request.request, columns_of(rows, COLUMNS), frontier, following)


def _rows(database: Database, month: date, accounts: list[str], progress: Progress) -> list[Any]:
    frontier = progress[0]
    return list(forecast_rows(database, month, accounts, frontier)) if accounts and frontier is not None else []
