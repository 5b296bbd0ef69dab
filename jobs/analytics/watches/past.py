"""A dry run: what a condition would have taken of usage as it is stored, without Spark and without storing anything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.analytics.few_outcomes import looked_up
from jobs.analytics.outcomes import IS_MEASURED, READ
from jobs.analytics.watches.attributes import READ as OF_ACCOUNTS
from jobs.analytics.watches.attributes import account_versions, attributes_in
from jobs.analytics.watches.hits import OF_ROWS, Hits
from jobs.analytics.watches.running import RunningWatches
from jobs.runtime.delta.rows_by_lsn import few_rows, whole
from jobs.runtime.delta.scans import TRUNCATED
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.watches.expressions import Expression, column_tests

BATCH_ROWS = 100_000
ANY = 2**62
"""However many rows the files of the journal have: nobody waits for this."""
COLUMNS = ("hour", "hits", "first_event_time", "first_account", "first_request_id")
BEFORE = timedelta(days=2)
"""A row may be written a day before that of its event, as clocks may be ahead."""


def past_hits(
    tables: str, condition: str, expression: Expression, start: datetime | None, end: datetime | None
) -> Iterator[dict[str, Any]]:
    """Rows with the keys COLUMNS: each hour of event time in [start, end) with hits, how many, and the first of them.

    Outcomes that were taken back are none. It reads all that `weir retain` has left. Raises OSError.
    """
    kinds = tuple(sorted({(test.column, test.kind.value) for test in column_tests(expression)}))
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None:
        return
    names = attributes_in(name for name, _ in kinds)
    accounts = open_table(tables, Table.ACCOUNTS) if names else None
    versions = None if accounts is None else account_versions(whole(accounts, OF_ACCOUNTS), names)
    running = RunningWatches((1, 1), ((1, condition, kinds),), versions)
    found = Hits()
    for rows in _measured(usage, start, end):
        reader = partial(few_rows, journal, max_rows=ANY)
        outcomes = looked_up(rows, running.of_outcomes, reader, OF_ROWS)
        if outcomes is not None:
            found.add(outcomes, running)
    yield from found.by_hour()


def _measured(usage: DeltaTable, start: datetime | None, end: datetime | None) -> Iterator[pl.DataFrame]:
    # By truncated statistics alone a file might be passed over, or taken as a whole.
    wanted, exact = ds.field("event_time").is_valid(), pl.sql_expr(IS_MEASURED)
    if start is not None:
        wanted &= ds.field("event_time") >= start - TRUNCATED
        wanted &= ds.field("log_date") >= (start - BEFORE).date()
        exact &= pl.col("event_time") >= start
    if end is not None:
        wanted &= ds.field("event_time") < end
        exact &= pl.col("event_time") < end
    columns = [*READ, "request_id"]
    for batch in usage.to_pyarrow_dataset().scanner(columns=columns, filter=wanted, batch_size=BATCH_ROWS).to_batches():
        if batch.num_rows:
            yield pl.DataFrame(batch).filter(exact)
