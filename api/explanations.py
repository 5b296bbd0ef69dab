"""`GET /v1/requests/{id}` and `/v1/events/{source}/{id}`: from a bill down to the records, as `weir explain` has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

import polars as pl
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer
from api.parameters import Parameters
from api.problems import Problem
from api.read_request import STAFF, ReadRequest, sees_staff
from api.reader import AccountReader
from api.tables import StoredTables, available, needed
from jobs.explain.documents import Document
from jobs.explain.of_id import Look, OpenTable, explain_event, explain_id
from jobs.explain.records import DEFAULT_PERIOD
from jobs.queries.reading import Database
from metering.api_keys import ApiKey

MAX_USAGE = 20
"""Rows of usage; of records four times as many."""
MAX_DAYS = 366
PARAMETERS = ("days",)
EVENTS = "/v1/events/"
Explain = Callable[[Database, OpenTable, Look], Document | None]


@dataclass(frozen=True)
class Explainer:
    """What explanations are made of: tables (None: the API does not read them), and a reader for them alone."""

    tables: StoredTables | None
    reader: AccountReader

    async def request(self, read_request: ReadRequest) -> Response:
        """The document of a request or event of the key's accounts that was received in the last `days`.

        Raises Problem: 404 where there is none, 501 where the API does not read the tables.
        """
        text = read_request.request.path_params["id"]
        return await self._answer(
            read_request,
            f"request or event {text!r}",
            lambda database, open_table, look: explain_id(database, open_table, text, look),
        )

    async def event(self, read_request: ReadRequest) -> Response:
        """What became of one event, by its identity; with the document of its records. Raises Problem as `request`."""
        source, id_ = identity_of(read_request.request)
        return await self._answer(
            read_request,
            f"event {id_!r} of the source {source!r}",
            lambda database, open_table, look: explain_event(database, open_table, source, id_, look),
        )

    async def _answer(self, read_request: ReadRequest, subject: str, explain: Explain) -> Response:
        given = Parameters.of(read_request.request.query_params, PARAMETERS)
        within = timedelta(days=given.number("days", 1, MAX_DAYS, DEFAULT_PERIOD.days))
        tables, key = needed(self.tables), read_request.key
        look = Look(_visible_to(key), within, MAX_USAGE)

        def read(database: Database) -> Document | None:
            with available():
                return explain(database, tables.open, look)

        document, frontier = await ReadRequest(read_request.request, key, self.reader).of(read)
        if document is None:
            raise Problem(
                HTTPStatus.NOT_FOUND,
                f"No {subject} of the key's accounts was received in the last {within.days} days: look further back "
                f"with days (at most {MAX_DAYS}).",
            )
        shown = document if sees_staff(key) else without_staff(document)
        return answer(read_request.request, shown, frontier)


def identity_of(request: Request) -> tuple[str, str]:
    """The source and the id in a path.

    A slash in an id must be percent-encoded; in a source it may be. Raises Problem: 404 where one is missing, or is not
    UTF-8.
    """
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    source, _, id_ = path[len(EVENTS) :].rpartition(b"/")
    try:
        found = unquote_to_bytes(source).decode(), unquote_to_bytes(id_).decode()
    except UnicodeDecodeError:
        found = ("", "")
    if not all(found):
        raise Problem(HTTPStatus.NOT_FOUND, "Name the event as /v1/events/SOURCE/ID, each percent-encoded.")
    return found


def without_staff(document: Document) -> Document:
    """The same without who decided or changed something, and why: that is between those who run Weir."""
    hidden = {"stragglers": STAFF, "prices": ("changed_by",)}
    return document | {
        name: [{key: value for key, value in row.items() if key not in columns} for row in document[name]]
        for name, columns in hidden.items()
    }


def _visible_to(key: ApiKey) -> pl.Expr | None:
    """Of rows with `account`: those of the key's accounts; None: all."""
    return pl.col("account").is_in(sorted(key.accounts)).fill_null(False) if key.accounts else None
