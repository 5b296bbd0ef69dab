"""`?after=POSITION&wait=SECONDS`: an answer that has what the same client has posted before, or none at all."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus

from api.parameters import AFTER, WAIT, Parameters, bad_request
from api.problems import Problem, unavailable
from api.read_request import ReadRequest
from api.tables import Awaited, StoredTables
from api.validation import IngestionNotStarted, Validator
from jobs.queries.reading import Database

MAX_WAIT_SECONDS = 30
DEFAULT_WAIT_SECONDS = 5
POLL_SECONDS = 0.25
MAX_PARTITIONS = 1_000
_PLACE = re.compile(r"([A-Za-z0-9._-]{1,249})/(\d{1,9})/(\d{1,18})")
_BILLED_TO = "SELECT next_position FROM positions WHERE job = 'billing' AND input = 'usage'"


async def await_own_writes(read_request: ReadRequest, tables: StoredTables | None, validator: Validator) -> None:
    """Return once usage is billed that was made of the records up to the position, if the request names one.

    Raises Problem: 409 (`not_yet`) when that takes longer than the request waits.
    """
    given = Parameters(read_request.request.query_params)
    position = given.text(AFTER)
    if position is None:
        return
    seconds = given.number(WAIT, 0, MAX_WAIT_SECONDS, DEFAULT_WAIT_SECONDS)
    if tables is None:
        raise Problem(
            HTTPStatus.NOT_IMPLEMENTED,
            f"This API does not read the tables, so it cannot answer {AFTER}: set WEIR_TABLES.",
        )
    awaited, deadline = _awaited(position, validator), time.monotonic() + seconds
    while not await _is_billed(awaited, read_request, tables):
        if time.monotonic() >= deadline:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"not_yet: what was posted up to {position} was not billed within {seconds} s. Ask again.",
                {"Retry-After": "1"},
                code="not_yet",
            )
        await asyncio.sleep(POLL_SECONDS)


async def _is_billed(awaited: Awaited, read_request: ReadRequest, tables: StoredTables) -> bool:
    usage_lsn = await tables.read(awaited.advance)
    if usage_lsn is None:
        return False

    def billed_to(database: Database) -> int:
        row = database.execute(_BILLED_TO).fetchone()
        return 1 if row is None else int(row["next_position"])

    return await read_request.reader.run(read_request.key, billed_to) >= usage_lsn


def _awaited(position: str, validator: Validator) -> Awaited:
    """Raises Problem for what is no position of the topics that ingestion reads."""
    try:
        topics = validator.topics
    except IngestionNotStarted:
        raise unavailable("Ingestion has not been started yet: nothing is billed.") from None
    required: dict[tuple[str, int], int] = {}
    parts = position.split(",")
    for part in parts[:MAX_PARTITIONS]:
        place = _PLACE.fullmatch(part)
        if place is None or place[1] not in topics or len(parts) > MAX_PARTITIONS:
            raise bad_request(AFTER, f"It must be a position that POST /v1/events gave, such as {topics[0]}/3/81234.")
        partition = place[1], int(place[2])
        required[partition] = max(required.get(partition, 0), int(place[3]) + 1)
    return Awaited(required)
