"""Unpropagated deletions: rows that joins prices with, but that were deleted while a replication slot was lost.

A snapshot after a lost slot has the rows that exist, but not the deletions. So catalog and topics are compared now and
then. A missing row counts only when its deletion would have arrived: Kafka had everything that was committed before the
row was missed (`catalog.capture`), and F has passed that moment. ingestion reads the catalog after it has fixed the
ends of a batch's events, so a driver that has read a later event has also read what Kafka had then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import structlog
from psycopg.rows import tuple_row

from jobs.joins.catalog import KEY_OF
from jobs.runtime.postgres.session import Session
from jobs.streams import Table
from metering.instants import Clock

log = structlog.get_logger()

LOOK_SECONDS = 150.0
"""Longer than a heartbeat that is idle and CLOCKS_DIFFER together, so that F passes a look before the next."""
CLOCKS_DIFFER = timedelta(seconds=60)
"""Of brokers and database, at most."""
BATCH_ROWS = 50_000
_PATIENCE = "-c statement_timeout=10s -c lock_timeout=2s"
"""A lock on the catalog must not hold up pricing."""
_CAPTURE = "SELECT captured_until FROM catalog.capture"
_NOW = "SELECT clock_timestamp()"
# An instant as joins has it: one outside its calendar was rejected when it was published.
_STORED = {
    Table.ACCOUNTS: "SELECT account FROM catalog.accounts",
    Table.PRICES: """
        SELECT plan, model, meter, currency, (extract(epoch FROM effective_from) * 1000000)::bigint
        FROM catalog.prices WHERE isfinite(effective_from)
    """,
}


def missing_rows(versions: pl.DataFrame, table: Table, database: psycopg.Connection[Any]) -> pl.DataFrame:
    """The newest of these versions (streams.ACCOUNTS, PRICES) whose row the database does not have, unless deleted."""
    key = KEY_OF[table]
    newest = versions.sort("lsn").unique(key, keep="last").filter(~pl.col("deleted"))
    joined = newest.with_columns(pl.col(name).dt.epoch("us") for name in key if name == "effective_from")
    schema = joined.select(key).schema
    parts = [pl.DataFrame(schema=schema)]
    with database.transaction(), database.cursor("stored", row_factory=tuple_row) as cursor:
        cursor.execute(_STORED[table])
        # A million prices as Python's tuples would take more memory than pricing by them.
        while rows := cursor.fetchmany(BATCH_ROWS):
            parts.append(pl.DataFrame(rows, schema=schema, orient="row"))
    stored = pl.concat(parts)
    missing = joined.join(stored, on=key, how="anti")["lsn"]
    return newest.filter(pl.col("lsn").is_in(missing.implode())).sort("lsn")


@dataclass(frozen=True)
class _Look:
    """When it was over, by the database, and before when all that was committed was in Kafka when it began."""

    at: datetime
    captured_until: datetime


class UnpropagatedDeletions:
    """Checks periodically; `rows` is how many there are. If a check is impossible the last result stays."""

    def __init__(self, postgres_url: str, clock: Clock) -> None:
        self.rows = 0
        self._url, self._clock = postgres_url, clock
        self._due = clock.monotonic() + LOOK_SECONDS
        self._before: _Look | None = None
        self._missed_at: dict[tuple[Table, int], datetime] = {}

    def look_if_due(self, versions: Mapping[Table, pa.Table], frontier: datetime | None) -> None:
        """Compare, if it is time; `versions`: all versions, by table. Never raises: bills do not depend on it."""
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + LOOK_SECONDS
        try:
            self._look(versions, frontier)
        except psycopg.Error as error:
            log.warning("the catalog cannot be compared with its versions", error=str(error))

    def _look(self, versions: Mapping[Table, pa.Table], frontier: datetime | None) -> None:
        with Session.to(self._url, "weir joins catalog", options=_PATIENCE) as database:
            (captured_until,) = database.execute(_CAPTURE).fetchone() or (None,)
            if captured_until is None:
                # Without capture there is nothing to compare; that has its own alert.
                return
            absent = [
                (table, lsn)
                for table, rows in versions.items()
                for lsn in missing_rows(pl.DataFrame(rows), table, database)["lsn"]
            ]
            # After the rows: what is missing among them was deleted before this.
            (now,) = database.execute(_NOW).fetchone() or (captured_until,)
        look = _Look(now, captured_until)
        self._missed_at = {row: self._missed_at.get(row, look.at) for row in absent}
        self.rows = len(self._unpropagated(frontier))
        self._before = look

    def _unpropagated(self, frontier: datetime | None) -> Sequence[tuple[Table, int]]:
        before = self._before
        if before is None or frontier is None or frontier <= before.at + CLOCKS_DIFFER:
            return []
        return [row for row, missed_at in self._missed_at.items() if missed_at < before.captured_until]
