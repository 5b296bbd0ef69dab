"""One read request: its key, and the database as that key may see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from starlette.requests import Request

from api.parameters import cursor_of
from api.reader import AccountReader
from jobs.billing_progress import Progress, billing_progress
from jobs.queries.reading import Database
from metering.api_keys import ApiKey

R = TypeVar("R")
Item = TypeVar("Item")
STAFF = ("decided_by", "reason")
"""Columns of a straggler that those who run Weir write for each other."""


def sees_staff(key: ApiKey) -> bool:
    """Whether a key is of those who run Weir: one that names accounts is a customer's."""
    return not key.accounts


@dataclass(frozen=True)
class ReadRequest:
    """A request with a key that may read."""

    request: Request
    key: ApiKey
    reader: AccountReader

    async def of(self, query: Callable[[Database], R]) -> tuple[R, datetime | None]:
        """What the key's accounts have, and the frontier of billing at that moment. Raises Problem."""
        return await self.with_progress(lambda database, _: query(database))

    async def with_progress(self, query: Callable[[Database, Progress], R]) -> tuple[R, datetime | None]:
        """As `of`, for what depends on how far usage is billed: that and the rows are of one snapshot."""

        def run(database: Database) -> tuple[R, datetime | None]:
            progress = billing_progress(database)
            return query(database, progress), progress[0]

        return await self.reader.run(self.key, run)


def page_of(
    found: Iterable[Item], limit: int, key_of: Callable[[Item], Sequence[Any]]
) -> tuple[list[Item], dict[str, str | None]]:
    """The first `limit` of rows, one more of which was read, and the member `next` of an answer."""
    rows = list(found)
    return rows[:limit], {"next": cursor_of(key_of(rows[limit - 1])) if len(rows) > limit else None}
