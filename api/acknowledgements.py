"""`POST /v1/corrections/ack`: a consumer has applied all corrections up to a number."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from api.answers import JSON, to_json
from api.lists import MAX_NUMBER
from api.meter_query_request import body_of
from api.parameters import bad_request, name_in
from api.problems import Problem
from api.read_request import ReadRequest
from api.reader import accounts_setting
from jobs.billing_progress import Row
from jobs.queries.correction_consumers import Acknowledgement, NotReached, TooManyConsumers
from jobs.queries.correction_consumers import acknowledge as store
from jobs.queries.reading import Database

MEMBERS = ("consumer", "number")
MAX_CONSUMERS = 100
"""Of the same accounts."""


async def acknowledge(read_request: ReadRequest) -> Response:
    """`consumer`, `number` up to which it has acknowledged, and `waiting`: how many corrections came after that.

    A number below the one that is stored changes nothing. Raises Problem: 400 for a number that no correction of the
    key's accounts has reached, 409 for one consumer more than MAX_CONSUMERS.
    """
    given = await body_of(read_request.request, MEMBERS)
    consumer, number = name_in(given.get("consumer"), "consumer"), _number(given.get("number"))
    of_accounts, key_id = accounts_setting(read_request.key), read_request.key.id

    def write(database: Database) -> Row:
        return store(database, Acknowledgement(consumer, of_accounts, number, key_id), MAX_CONSUMERS)

    try:
        stored = await read_request.reader.run(read_request.key, write, writes=True)
    except NotReached:
        raise bad_request("number", "No correction has this number yet.", "body") from None
    except TooManyConsumers:
        detail = f"There are {MAX_CONSUMERS} consumers already: `weir consumers remove` removes one."
        raise Problem(HTTPStatus.CONFLICT, detail) from None
    return Response(to_json(stored), headers={"Cache-Control": "no-store"}, media_type=JSON)


def _number(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MAX_NUMBER:
        raise bad_request("number", "It must be the `number` of a correction.", "body")
    return given
