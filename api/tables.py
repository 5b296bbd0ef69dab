"""What the API reads of the Delta tables: how far records of Kafka have come, and the files of an explanation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import polars as pl
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from api.problems import Problem, unavailable
from deployment.errors import CannotRun
from deployment.positions import JOURNAL_POSITION, describe
from jobs.runtime.delta.followed import FollowedTable
from jobs.runtime.delta.table import LSN, open_table
from jobs.runtime.kafka.topic import Topic
from jobs.streams import Table

log = structlog.get_logger()

REFRESH_SECONDS = 0.2
"""How old what is known of a table may be: many may wait at once."""
READ_TIMEOUT_SECONDS = 10.0
"""Of one look at the tables, with its wait for others; who waits for longer is answered 503."""
R = TypeVar("R")


class StoredTables:
    """The tables below `root`, and Kafka's id of a topic, by which the journal has its positions."""

    def __init__(self, root: str, kafka_bootstrap: str, read_timeout_seconds: float = READ_TIMEOUT_SECONDS) -> None:
        self._root, self._kafka_bootstrap = root, kafka_bootstrap
        self._topics: dict[str, Topic] = {}
        self._followed: dict[Table, tuple[FollowedTable, float]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tables")
        self._read_timeout_seconds = read_timeout_seconds

    def open(self, table: Table) -> DeltaTable | None:
        """The newest version of a table; None before it was made."""
        return open_table(self._root, table)

    async def read(self, query: Callable[[StoredTables], R]) -> R:
        """What `query` answers, in the thread of the tables.

        Raises Problem (503) where they or Kafka are unavailable, or take too long.
        """
        try:
            async with asyncio.timeout(self._read_timeout_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._thread, query, self)
        except TimeoutError:
            seconds = f"{self._read_timeout_seconds:.0f} s"
            raise unavailable(f"The tables could not be read within {seconds}: ask again later.") from None
        except (DeltaError, OSError, CannotRun) as error:
            log.warning("the tables cannot be read", reason=str(error).partition("\n")[0])
            raise unavailable("What is billed cannot be read now: ask again later. The API's log says why.") from None

    def topic(self, name: str) -> Topic:
        """A topic with its id. Raises CannotRun."""
        if name not in self._topics:
            (self._topics[name],) = describe(self._kafka_bootstrap, [name])
        return self._topics[name]

    def transaction(self, table: Table, name: str) -> int:
        """A number that the table's last commit carries; 0 before the table or the number exists."""
        found = self._followed.get(table)
        now = time.monotonic()
        if found is None:
            opened = self.open(table)
            if opened is None:
                return 0
            self._followed[table] = (FollowedTable(opened), now)
        else:
            followed, read_at = found
            if now - read_at > REFRESH_SECONDS:
                followed.refresh()
                self._followed[table] = (followed, now)
            opened = followed.table
        return opened.transaction_version(name) or 0

    def close(self) -> None:
        """Take no further queries."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def needed(tables: StoredTables | None) -> StoredTables:
    """The same tables. Raises Problem (501) where the API does not read them."""
    if tables is None:
        raise Problem(HTTPStatus.NOT_IMPLEMENTED, "This API does not read the tables: set WEIR_TABLES.")
    return tables


@contextmanager
def available() -> Iterator[None]:
    """Around what reads the tables. Raises Problem (503) where they cannot be read."""
    try:
        yield
    except (DeltaError, OSError, pl.exceptions.PolarsError) as error:
        log.warning("the tables cannot be read", reason=str(error).partition("\n")[0])
        raise unavailable("The tables cannot be read now: ask again later. The API's log says why.") from None


@dataclass
class Awaited:
    """Records on their way to a bill. Each step's goal is set when the step before has reached its own.

    `required`: next offsets by topic and partition.
    """

    required: Mapping[tuple[str, int], int]
    journal_lsn: int | None = None
    """What joins must have read; None: the journal lacks a record."""
    usage_lsn: int | None = None
    """What billing must have read; None: joins lacks a record."""

    def advance(self, tables: StoredTables) -> int | None:
        """Look how far they have come; gives `usage_lsn`."""
        if self.journal_lsn is None:
            reached = (
                tables.transaction(Table.JOURNAL, tables.topic(name).position(partition)) >= end
                for (name, partition), end in self.required.items()
            )
            if not all(reached):
                return None
            self.journal_lsn = tables.transaction(Table.JOURNAL, LSN)
        if self.usage_lsn is None and tables.transaction(Table.USAGE, JOURNAL_POSITION) >= self.journal_lsn:
            self.usage_lsn = tables.transaction(Table.USAGE, LSN) or 1
        return self.usage_lsn
