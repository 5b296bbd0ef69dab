"""`GET /v1/models`: which models the accounts of a key use most, as `weir models` ranks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from api.answers import answer, columns_of
from api.parameters import Parameters, bad_request
from api.read_request import ReadRequest
from api.reader import AccountReader
from api.tables import StoredTables, available, needed
from jobs.billing_progress import Progress
from jobs.queries.models import COLUMNS, Measure, ModelQuery, UserLimits, model_rows
from jobs.queries.reading import Database
from jobs.streams import Table

PARAMETERS = ("from", "to", "by", "account")
MINUTE, DEFAULT_SPAN = timedelta(minutes=1), timedelta(days=7)
MAX_SPAN = timedelta(days=92)
LIMITS = UserLimits(max_rows=10_000_000, max_users=500_000)
"""A million rows took 0.3 to 1.5 CPU-seconds, and 500,000 users 200 MiB."""


@dataclass(frozen=True)
class Ranking:
    """Users are counted in tables (None: the API does not read them); a reader for what reads tables alone."""

    tables: StoredTables | None
    reader: AccountReader

    async def models(self, read_request: ReadRequest) -> Response:
        """Rows of `jobs.queries.models.COLUMNS`, by rank; `users` is null beyond LIMITS.

        Raises Problem: 400, also for a rank by users beyond LIMITS; 501 for one without tables.

        Without `to` the span ends with the minute of the frontier, without `from` it begins seven days before.
        """
        given = Parameters.of(read_request.request.query_params, PARAMETERS)
        (start, end), key = given.range(), read_request.key
        by, accounts = given.choice("by", Measure, Measure.REQUESTS) or Measure.REQUESTS, given.accounts(key)
        if any(bound is not None and (bound.second or bound.microsecond) for bound in (start, end)):
            raise bad_request("from", "It and `to` must be whole minutes: usage is kept by the minute.")
        if by is Measure.USERS:
            needed(self.tables)

        def read(database: Database, progress: Progress) -> list[Mapping[str, Any]]:
            until = end
            if until is None:
                if progress[0] is None:
                    return []
                until = progress[0].replace(second=0, microsecond=0) + MINUTE
            since = until - DEFAULT_SPAN if start is None else start
            if not timedelta() < until - since <= MAX_SPAN:
                raise bad_request("from", f"It must be up to {MAX_SPAN.days} days before `to`.")
            query = ModelQuery(since, until, by, accounts or tuple(sorted(key.accounts)))
            with available():
                usage = None if self.tables is None else self.tables.open(Table.USAGE)
                found: list[Mapping[str, Any]] = list(model_rows(database, usage, query, LIMITS))
            if by is Measure.USERS:
                refuse_uncounted(found)
            return found

        rows, frontier = await ReadRequest(read_request.request, key, self.reader).with_progress(read)
        return answer(read_request.request, columns_of(rows, COLUMNS), frontier)


def refuse_uncounted(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises Problem (400) for a rank by users where they were beyond LIMITS."""
    if any(row["users"] is None for row in rows):
        raise bad_request(
            "by",
            f"Users are counted in up to {LIMITS.max_rows:,} rows of usage, with the time of equal length before, and "
            f"up to {LIMITS.max_users:,} of them: ask for a shorter time, or rank by another measure.",
        )
