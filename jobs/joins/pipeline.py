"""Delta `journal` → Delta `usage`, `accounts`, `prices`: requests matched with their completions, and priced.

Every accepted request or completion is in exactly one usage row, whatever the micro-batch cuts; a usage commit holds
the journal position that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.joins.catalog import Catalog
from jobs.joins.config import JoinsConfig
from jobs.joins.frontier import held_frontier
from jobs.joins.memory import CARRIED, Memory
from jobs.joins.pairs import pair_frames
from jobs.joins.pricing import price
from jobs.joins.resolve import resolve
from jobs.runtime.batch import contiguous, seen_in
from jobs.runtime.delta import FRONTIER, LSN, DeltaWriter, instant_of, microseconds_of, open_table
from jobs.runtime.job import Context, Progress, TableJob
from jobs.runtime.position import Position, position_after, recall_position, transactions_of, with_fingerprint
from jobs.runtime.upstream import Upstream
from jobs.streams import USAGE, Disposition, EventType, Table

NAME = "joins"
CLOCK_SKEW = timedelta(days=1)
"""A row's log date is the driver's, its received_at the broker's: their clocks may differ."""
PAIRED = [EventType.REQUEST.value, EventType.COMPLETION.value, EventType.USAGE.value]
COLUMNS = with_fingerprint(
    Table.JOURNAL, (*(name for name in CARRIED if name != "decided_side"), "disposition", "topic", "frontier", "value")
)


def build(
    pairs: DataFrame,
    contested: DataFrame | None,
    catalog: tuple[DataFrame, DataFrame],
    config: JoinsConfig,
    frontier: datetime | None,
) -> DataFrame:
    """Requests, completions and what waits for them → one priced row per outcome; `outcome` null: still waiting."""
    return price(resolve(pairs, contested, config.completion_timeout_seconds, frontier), *catalog)


class UsageSink:
    """Matches, prices, and appends usage with the journal position that it was made from."""

    def __init__(self, context: Context[JoinsConfig]) -> None:
        self._config = context.config
        self._spark = context.spark
        tables, epoch, driver = context.environment.tables, context.ownership.epoch, context.ownership.driver
        self._usage = DeltaWriter(tables, Table.USAGE, NAME, epoch, driver)
        self._journal = Upstream(tables, Table.JOURNAL)
        self._catalog = Catalog(context.spark, tables, epoch, driver)
        self._at = recall_position(self._usage, Table.JOURNAL)
        self._frontier = instant_of(self._usage.recall(FRONTIER))
        self._memory = self._remember(tables)

    def _remember(self, tables: str) -> Memory:
        """Derive what waits, and what was decided within the timeout, from the journal below the position and usage."""
        timeout = timedelta(seconds=self._config.completion_timeout_seconds)
        journal = open_table(tables, Table.JOURNAL)
        if journal is None or self._frontier is None:
            return Memory(timeout)
        oldest = self._frontier - timeout
        recent = (pl.col("received_at") >= oldest) & (pl.col("log_date") >= (oldest - CLOCK_SKEW).date())
        rows = (
            pl.scan_pyarrow_dataset(journal.to_pyarrow_dataset())
            .filter(recent & (pl.col("lsn") < self._at.next_lsn) & _paired())
            .select(name for name in CARRIED if name != "decided_side")
            .collect()
        )
        outcomes = (
            pl.scan_pyarrow_dataset(self._usage.table.to_pyarrow_dataset())
            .filter(recent)
            .select("outcome", "request_lsn", "completion_lsn")
            .collect()
        )
        memory = Memory(timeout)
        memory.learn(memory.involved(rows, None), outcomes, self._frontier)
        return memory

    def verify(self, upstream: Upstream) -> None:
        """Check that usage and the catalog are of this journal, and of each other; older positions adopt it, once."""
        self._catalog.refuse_other_than(self._usage)
        verified = upstream.verified(NAME, self._at)
        self._catalog.verify(upstream)
        if verified != self._at and verified.next_lsn > 1:
            adopted = {**transactions_of(Table.JOURNAL, verified), **self._catalog.state(), LSN: self._usage.next_lsn}
            self._usage.commit(USAGE.empty_table(), adopted)
        self._at = verified

    def process(self, batch: DataFrame) -> Progress:
        """Decide what the new rows and the passing of time decide, and append it."""
        is_change = F.col("topic").startswith("catalog.")
        # Cut here and not in Spark, which would compile the position into new code for every batch.
        arrow = batch.withColumn("value", F.when(is_change, F.col("value"))).toArrow()
        arrow = arrow.filter(pc.greater_equal(arrow["lsn"], self._at.next_lsn))
        rows = contiguous(self._at.next_lsn, seen_in(arrow["lsn"]), NAME)
        if rows.records == 0:
            return Progress(0, {})
        journal, after = pl.DataFrame(arrow), position_after(Table.JOURNAL, self._at, arrow, rows.next)
        self._journal.refresh()
        frontier = held_frontier(journal, ends_table=rows.next >= self._journal.next_lsn, before=self._frontier)
        accepted = pl.col("disposition") == Disposition.ACCEPTED
        self._catalog.take(journal.filter(accepted & pl.col("topic").str.starts_with("catalog.")), after)
        involved = self._memory.involved(journal.filter(_paired()), frontier)
        outcomes = self._decide(involved, frontier)
        self._memory.learn(involved, outcomes, frontier)
        decided = outcomes.filter(pl.col("outcome").is_not_null())
        self._commit(decided.with_columns(day=self._catalog.days(decided)), after, frontier)
        return Progress(rows.records, _counts(outcomes))

    def _decide(self, involved: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
        if involved.is_empty():
            return pl.DataFrame(schema=pl.Schema(pl.DataFrame(USAGE.empty_table()).schema))
        timeout = timedelta(seconds=self._config.completion_timeout_seconds)
        parts = pair_frames(self._spark, involved, timeout)
        decided = build(*parts, self._catalog.frames(), self._config, frontier)
        return pl.DataFrame(decided.toArrow())

    def _commit(self, outcomes: pl.DataFrame, after: Position, frontier: datetime | None) -> None:
        next_lsn = self._usage.next_lsn + len(outcomes)
        transactions = {**transactions_of(Table.JOURNAL, after), LSN: next_lsn, **self._memory.waiting()}
        transactions |= {
            name: said for name, said in self._catalog.state().items() if self._usage.known.get(name) != said
        }
        if frontier is not None:
            transactions[FRONTIER] = microseconds_of(frontier)
        self._usage.commit(usage_rows(outcomes, self._usage.next_lsn, datetime.now(UTC)), transactions)
        self._at, self._frontier = after, frontier

    def position(self) -> int:
        """The next lsn of the journal."""
        return self._at.next_lsn

    def advance(self) -> None:
        """Nothing: the journal's heartbeats move the frontier."""

    def frontier(self) -> datetime | None:
        """F of the journal prefix that usage was made from."""
        return self._frontier

    def status(self) -> dict[str, Any]:
        """How many requests and completions wait for their partner."""
        waiting = self._memory.waiting()
        return {"waiting": waiting["waiting"], "oldest_waiting_lsn": waiting["waiting.lsn"] or None}

    def close(self) -> None:
        """Nothing to give back."""


def _paired() -> pl.Expr:
    return (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("type").is_in(PAIRED)


def usage_rows(outcomes: pl.DataFrame, first_lsn: int, logged_at: datetime) -> pa.Table:
    """Decided outcomes as rows of `usage`, in the order of the journal."""
    ordered = outcomes.sort(pl.max_horizontal("request_lsn", "completion_lsn")).with_columns(
        pl.lit(logged_at).alias("logged_at"),
        pl.lit(logged_at.date()).alias("log_date"),
        pl.lit(None, pl.String).alias("rules"),
    )
    return ordered.drop("lsn", strict=False).with_row_index("lsn", first_lsn).select(USAGE.names).to_arrow().cast(USAGE)


def _counts(outcomes: pl.DataFrame) -> Mapping[tuple[str, ...], int]:
    decided = outcomes.filter(pl.col("outcome").is_not_null()).group_by("outcome").len()
    return {("outcomes", outcome): count for outcome, count in decided.iter_rows()}


JOB = TableJob(name=NAME, reads=Table.JOURNAL, writes=Table.USAGE, columns=COLUMNS, config=JoinsConfig, start=UsageSink)
