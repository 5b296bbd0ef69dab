"""`GET /v1/requests/{id}`: the way from a bill's lines down to the records of a request, as `weir explain` has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus

import polars as pl
import structlog
from deltalake.exceptions import DeltaError
from starlette.responses import Response

from api.answers import answer
from api.problems import Problem, unavailable
from api.questions import Parameters
from api.read_request import STAFF, ReadRequest, sees_staff
from api.reader import AccountReader
from api.tables import StoredTables
from jobs.explain.documents import Document
from jobs.explain.of_id import explain_id
from jobs.explain.records import DEFAULT_PERIOD
from jobs.queries.reading import Database

log = structlog.get_logger()

MAX_USAGE = 20
"""Rows of usage; of records four times as many."""
MAX_DAYS = 366
PARAMETERS = ("days",)


async def explained(read_request: ReadRequest, tables: StoredTables | None, explaining: AccountReader) -> Response:
    """The document of a request or event of the key's accounts that was received in the last `days`.

    `explaining` reads for explanations alone. Raises Problem: 404 where there is none, 501 where the API does not read
    the tables.
    """
    given = Parameters.of(read_request.request.query_params, PARAMETERS)
    within = timedelta(days=given.number("days", 1, MAX_DAYS, DEFAULT_PERIOD.days))
    if tables is None:
        raise Problem(HTTPStatus.NOT_IMPLEMENTED, "This API does not read the tables: set WEIR_TABLES.")
    text = read_request.request.path_params["id"]
    accounts = sorted(read_request.key.accounts)
    whose = pl.col("account").is_in(accounts).fill_null(False) if accounts else None

    def question(database: Database) -> Document | None:
        try:
            return explain_id(database, tables.open, text, whose=whose, within=within, limit=MAX_USAGE)
        except (DeltaError, OSError, pl.exceptions.PolarsError) as error:
            log.warning("the tables cannot be read", reason=str(error).partition("\n")[0])
            raise unavailable("The tables cannot be read now: ask again later. The API's log says why.") from None

    document, frontier = await replace(read_request, reader=explaining).of(question)
    if document is None:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"No request or event {text!r} of the key's accounts was received in the last {within.days} days: look "
            f"further back with days (at most {MAX_DAYS}).",
        )
    return answer(read_request.request, document if sees_staff(read_request.key) else without_staff(document), frontier)


def without_staff(document: Document) -> Document:
    """The same without who decided or changed something, and why: that is between those who run Weir."""
    hidden = {"stragglers": STAFF, "prices": ("changed_by",)}
    return document | {
        name: [{key: value for key, value in row.items() if key not in columns} for row in document[name]]
        for name, columns in hidden.items()
    }
