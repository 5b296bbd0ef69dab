"""What is remembered, decided and priced on the driver, and the commit that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.joins.catalog import Catalog
from jobs.joins.config import JoinsConfig
from jobs.joins.frontier import held_frontier, last_frontier
from jobs.joins.memory import Memory
from jobs.joins.past import Past, is_paired, preceding_frontier, remembered
from jobs.joins.resolve import resolve
from jobs.joins.timeouts import Timeouts
from jobs.runtime.batch import contiguous, seen_in
from jobs.runtime.delta.position import Position, position_after, recall_position, transactions_of
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, instant_of, microseconds_of, numbered, open_table
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import NotYet
from jobs.runtime.job import Context, Counts, Progress
from jobs.runtime.rules_in_force import TRANSACTION as RULES
from jobs.runtime.rules_in_force import Held, History, RulesInForce, rules_text
from jobs.streams import USAGE, Table
from metering.words import Cause, Disposition, Job
from monitoring import metrics
from monitoring.instruments import GaugeMetric

NAME = Job.JOINS.value


Build = Callable[[DataFrame, tuple[DataFrame, DataFrame]], DataFrame]
"""Outcomes (`resolve`), and the frames of the catalog → priced rows of usage."""


class UsageSink:
    """Matches, prices, and appends usage with the journal position that it was made from."""

    def __init__(self, context: Context[JoinsConfig], build: Build) -> None:
        self._build = build
        self._config = context.config
        self._spark = context.spark
        self._clock = context.clock
        tables, epoch, driver = context.environment.tables, context.ownership.epoch, context.ownership.driver
        self._usage = DeltaWriter(tables, Table.USAGE, NAME, epoch, driver)
        self._journal = Upstream(tables, Table.JOURNAL)
        self._catalog = Catalog(context.spark, tables, epoch, driver)
        self._at = recall_position(self._usage, Table.JOURNAL)
        self._frontier = instant_of(self._usage.recall(FRONTIER))
        self._rules = RulesInForce(self._usage, context.config.deciding)
        if not self._rules.history:
            # Nothing was decided yet, or by a version that kept no rules: these decide what is undecided.
            first = 1 if self._usage.next_lsn == 1 else self._at.next_lsn
            self._history: History = (Held(first, context.config.deciding),)
        else:
            self._history = self._rules.history
        self._memory, self._preceding_frontier = self._remember(tables)

    def _remember(self, tables: str) -> tuple[Memory, datetime | None]:
        """What a later row can meet, and what the last row that was read says of F."""
        journal = open_table(tables, Table.JOURNAL)
        if journal is None or self._at.next_lsn == 1:
            return Memory.empty(), None
        waiting_from = self._usage.recall("waiting.lsn") or None
        rows, outcomes = (pl.scan_pyarrow_dataset(t.to_pyarrow_dataset()) for t in (journal, self._usage.table))
        past = Past(rows, outcomes, self._at.next_lsn, self._frontier, waiting_from)
        return remembered(past, self._history), preceding_frontier(rows, self._at.next_lsn)

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
        ends_table = rows.next >= self._journal.next_lsn
        frontier = held_frontier(
            journal, ends_table=ends_table, before=self._frontier, preceding=self._preceding_frontier
        )
        accepted = pl.col("disposition") == Disposition.ACCEPTED
        timeout_us = Timeouts(self._history).of_row()
        involved = self._memory.involved(journal.filter(is_paired()).with_columns(timeout_us), frontier)
        outcomes = resolve(involved, frontier)
        memory = self._memory.after(involved, outcomes, frontier).within(self._limit_bytes, frontier)
        self._refuse_to_grow(memory, unread=self._journal.next_lsn - rows.next)
        self._catalog.take(journal.filter(accepted & pl.col("topic").str.starts_with("catalog.")), after)
        self._commit(self._priced(outcomes), memory, after, frontier)
        self._preceding_frontier = last_frontier(journal)
        return Progress(rows.records, _counts(outcomes))

    @property
    def _limit_bytes(self) -> int:
        return self._config.waiting_memory_mib << 20

    def _refuse_to_grow(self, memory: Memory, unread: int) -> None:
        """Wait while what must be remembered would not fit: before anything is changed, and never for what shrinks.

        Only F frees it. F may have moved already, but in rows behind these, which must be remembered until then.
        """
        needed = memory.size_bytes()
        if needed > self._limit_bytes and needed > self._memory.size_bytes():
            # As if all that is unread had to be remembered: with so much it surely goes on.
            enough = needed + max(0, unread) * needed // memory.records()
            raise NotYet(
                Cause.MEMORY,
                f"joins.waiting_memory_mib is {self._config.waiting_memory_mib}, too little for what joins must "
                f"remember while the frontier stands still: the next rows need {(needed >> 20) + 1}, all {unread} that "
                f"follow at most {(enough >> 20) + 1}. Set it to that: on a laptop in the file of `weir up --config "
                "FILE`; on a cluster jobs.joins.config.waiting_memory_mib, and raise "
                "jobs.joins.driver.memoryOverhead by as much. And find the partition of `events` that is offline or "
                "gets no heartbeat",
            )

    def _priced(self, outcomes: pl.DataFrame) -> pl.DataFrame:
        if outcomes.is_empty():
            return pl.DataFrame(schema=pl.Schema(pl.DataFrame(USAGE.empty_table()).schema))
        told = self._spark.createDataFrame(outcomes.drop("timeout_us").to_arrow())
        priced = pl.DataFrame(self._build(told, self._catalog.frames()).toArrow())
        return priced.with_columns(day=self._catalog.days(priced))

    def _commit(self, usage: pl.DataFrame, memory: Memory, after: Position, frontier: datetime | None) -> None:
        now, next_lsn = self._clock.now(), self._usage.next_lsn + len(usage)
        transactions = {**transactions_of(Table.JOURNAL, after), LSN: next_lsn, **memory.waiting()}
        transactions |= {
            name: said for name, said in self._catalog.state().items() if self._usage.known.get(name) != said
        }
        if frontier is not None:
            transactions[FRONTIER] = microseconds_of(frontier)
        # Rules that changed hold from the next batch on: what decides is kept before it decides.
        first = after.next_lsn if self._rules.history else self._history[0].first
        rules = self._rules.said(first, now) if len(usage) else {}
        if rules:
            transactions[RULES] = self._usage.next_lsn
        self._usage.commit(usage_rows(usage, self._usage.next_lsn, now, rules_text(rules)), transactions)
        if rules:
            self._rules.kept(first, now)
            self._history = self._rules.history
        self._memory, self._at, self._frontier = memory, after, frontier

    def position(self) -> int:
        """The next lsn of the journal."""
        return self._at.next_lsn

    def advance(self) -> None:
        """Nothing: the journal's heartbeats move the frontier."""

    def frontier(self) -> datetime | None:
        """F of the journal prefix that usage was made from."""
        return self._frontier

    def status(self) -> dict[str, Any]:
        """How many requests and completions wait for their partner, and what all that is remembered takes."""
        waiting = self._memory.waiting()
        return {
            "waiting": waiting["waiting"],
            "oldest_waiting_lsn": waiting["waiting.lsn"] or None,
            "waiting_bytes": self._memory.size_bytes(),
            "waiting_limit_bytes": self._limit_bytes,
        }

    def gauges(self) -> Mapping[GaugeMetric, float]:
        """What waits, what all that is remembered takes and may take, and how long a request waits."""
        return {
            metrics.WAITING: self._memory.waiting()["waiting"],
            metrics.WAITING_MEMORY: self._memory.size_bytes(),
            metrics.WAITING_MEMORY_LIMIT: self._limit_bytes,
            metrics.TIMEOUT: self._config.completion_timeout_seconds,
        }

    def close(self) -> None:
        """Nothing to give back."""


def usage_rows(outcomes: pl.DataFrame, first_lsn: int, logged_at: datetime, rules: str | None) -> pa.Table:
    """Decided outcomes as rows of `usage`, in the order of the journal; the first one keeps `rules`."""
    ordered = outcomes.sort(pl.max_horizontal("request_lsn", "completion_lsn")).with_columns(
        pl.lit(logged_at).alias("logged_at"), pl.lit(logged_at.date()).alias("log_date")
    )
    rows = numbered(ordered.drop("lsn", strict=False), first_lsn)
    kept = pl.when(pl.col("lsn") == first_lsn).then(pl.lit(rules, pl.String)).alias("rules")
    return rows.with_columns(kept).select(USAGE.names).to_arrow().cast(USAGE)


def _counts(outcomes: pl.DataFrame) -> Counts:
    return {(metrics.OUTCOMES, outcome): count for outcome, count in outcomes.group_by("outcome").len().iter_rows()}
