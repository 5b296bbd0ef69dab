"""The sink of joins: state, decisions and prices on the driver, and the commit of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from jobs.joins.catalog import Catalog
from jobs.joins.config import JoinsConfig
from jobs.joins.decide import Known, decide, rules_after
from jobs.joins.decisions import decisions, with_decisions
from jobs.joins.exchange import Exchange
from jobs.joins.frontier import batch_frontier, last_frontier
from jobs.joins.large_batch import (
    DECIDED,
    Catalogued,
    DecidePart,
    ReadPart,
    Sizes,
    WriteRange,
    files_in,
    parts_for,
    parts_in,
    ranges_of,
)
from jobs.joins.memory import Memory
from jobs.joins.price_ladders import PriceLadders, refuse_period_tiers
from jobs.joins.recovery import RecoverySource
from jobs.joins.spread_memory import SpreadMemory, spread
from jobs.joins.unlisted_attributes import refuse_unlisted
from jobs.joins.unpropagated_deletions import UnpropagatedDeletions
from jobs.joins.usage_rows import priced, usage_rows
from jobs.runtime.batch import LsnRange, contiguous, seen_in_runs
from jobs.runtime.batch_limits import BATCH_VALUES
from jobs.runtime.delta.new_files import NewFile, cleaned_up
from jobs.runtime.delta.pieces import Pieces
from jobs.runtime.delta.position import FINGERPRINT, Position, position_after, recall_position, transactions_of
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, instant_of, microseconds_of, open_table
from jobs.runtime.delta.upstream import Upstream, no_table
from jobs.runtime.effective_rules import TRANSACTION as RULES
from jobs.runtime.effective_rules import EffectiveRules, RulesHistory, rules_text
from jobs.runtime.errors import NotYet
from jobs.runtime.job import Batch, Context, Counts, Progress, TableJob
from jobs.runtime.new_rows import driver_new_rows, in_parts, new_rows
from jobs.runtime.spark import driver_rows
from jobs.runtime.summaries import answers_of_tasks
from jobs.streams import USAGE, CatalogTopic, Table
from metering.meters import columns_of
from metering.vocabulary import Cause, Disposition
from monitoring import metrics
from monitoring.instruments import CounterMetric, GaugeMetric


class UsageSink:
    """Matches, prices, and appends usage with the journal position that it was made from."""

    sizes = Sizes()

    def __init__(self, job: TableJob[JoinsConfig], context: Context[JoinsConfig]) -> None:
        self._job = job
        self._config = context.config
        self._clock, self._spark = context.clock, context.spark
        self.driver_rows = driver_rows(context.config.driver_rows, context.spark, context.config.max_batch_rows)
        """Up to how many rows of a batch the driver takes; None: all."""
        self.task_rows = 0 if self.driver_rows is None else context.config.max_records_per_batch
        self._spread: SpreadMemory | None = None
        """What waits, after a batch of tasks."""
        tables, epoch, driver = context.environment.tables, context.ownership.epoch, context.ownership.driver
        self._usage = DeltaWriter(tables, job.writes, job.name, epoch, driver)
        self._journal = Upstream(tables, job.reads)
        self._catalog = Catalog(tables, epoch, driver, context.config.of_accounts)
        self._at = recall_position(self._usage, job.reads)
        self._rules = RulesHistory(self._usage, context.config.deciding)
        self._known = self._remember(tables)
        self._deletions = UnpropagatedDeletions(context.environment.postgres_url, context.clock)
        self._ladders = PriceLadders(context.environment.postgres_url)

    def _remember(self, tables: str) -> Known:
        """What a later row can meet, and what decides it."""
        past = None
        if self._at.next_lsn > 1:
            if (journal := open_table(tables, self._job.reads)) is None:
                raise no_table(self._job.name, self._job.reads, self._at.next_lsn, f"{tables}/{self._job.reads}")
            frontier = instant_of(self._usage.recall(FRONTIER))
            rows, outcomes = (pl.scan_pyarrow_dataset(t.to_pyarrow_dataset()) for t in (journal, self._usage.table))
            waiting_from = self._usage.recall("waiting.lsn") or None
            past = RecoverySource(rows, outcomes, self._at.next_lsn, frontier, waiting_from, self._config.carried)
        first = 1 if self._usage.next_lsn == 1 else self._at.next_lsn
        return Known.derived(
            past, self._rules.history, EffectiveRules(first, self._config.deciding), self._config.carried
        )

    def verify(self, upstream: Upstream) -> None:
        """Check that usage and the catalog are of this journal, and of each other; older positions adopt it, once."""
        self._catalog.refuse_other_than(self._usage)
        self._refuse_unlisted()
        self._ladders.store(self._catalog.stored[Table.PRICES])
        verified = upstream.verified(self._job.name, self._at)
        self._catalog.verify(upstream)
        if verified != self._at and verified.next_lsn > 1:
            adopted = {**transactions_of(Table.JOURNAL, verified), **self._catalog.state()}
            self._usage.append(lambda next_lsn: (USAGE.empty_table(), {**adopted, LSN: next_lsn}))
        self._at = verified

    @property
    def rows_at_once(self) -> int:
        """Most rows of the journal that are decided and priced at once."""
        return self._config.rows_at_once

    def process(self, batch: Batch) -> Progress:
        """Decide what the new rows and the passing of time decide, and append it.

        The driver takes a part of the rows at a time; tasks take all files of a batch (`large_batch`). All outcomes
        decided by the passing of time are one commit; `waiting_memory_mib` bounds them.
        """
        if isinstance(batch, Pieces):
            return self._process_in_tasks(batch)
        self._gather()
        new, rows = self._new(batch)
        counts: Counter[tuple[CounterMetric, *tuple[str, ...]]] = Counter()
        for part in in_parts(new, self._config.max_batch_rows, columns_of(self._config.declared), BATCH_VALUES):
            counts.update(self._take(part))
        return Progress(rows.records, counts)

    def _take(self, new: pa.Table) -> Counts:
        _, rows = driver_new_rows(new, self._at.next_lsn, self._job.name, FINGERPRINT[self._job.reads])
        journal, after = pl.DataFrame(new), position_after(self._job.reads, self._at, rows.next, rows.last)
        self._journal.refresh()
        ends_table = rows.next >= self._journal.next_lsn
        outcomes, known = decide(self._known, journal, self._config.deciding, self._limit_bytes, ends_table=ends_table)
        self._refuse_to_grow(known.memory, unread=self._journal.next_lsn - rows.next)
        accepted = pl.col("disposition") == Disposition.ACCEPTED
        decided = self._take_changes(journal.filter(accepted & pl.col("topic").str.starts_with("catalog.")), after)
        self._commit(with_decisions(self._priced(outcomes), decided), known, after)
        return _counts(outcomes)

    def _take_changes(self, changes: pl.DataFrame, after: Position) -> pa.Table:
        """Store what has changed in the catalog; gives the rows of people's decisions."""
        self._catalog.take(changes, after)
        if CatalogTopic.PRICES in changes["topic"]:
            self._refuse_unlisted()
            # Before usage names a version: then bills find what it costs.
            self._ladders.store(self._catalog.stored[Table.PRICES])
        return decisions(changes, self._known.frontier)

    def _process_in_tasks(self, batch: Pieces) -> Progress:
        """What `_take` does, of all rows of the batch at once; tasks read, decide, price and write them."""
        exchange = self._exchange()
        begun: set[str] = set()
        with cleaned_up(lambda: exchange.remove(begun - (self._spread.paths if self._spread else set()))):
            return self._in_tasks(batch.since(self._at.next_lsn), exchange, begun)

    def _in_tasks(self, batch: Pieces, exchange: Exchange, begun: set[str]) -> Progress:
        position, fingerprint = self._at.next_lsn, FINGERPRINT[self._job.reads]
        parts = parts_for(batch.rows, self._spark.sparkContext.defaultParallelism, self.sizes.part_rows)
        if self._spread is not None and len(self._spread.parts) != parts:
            self._gather()
        before = self._spread or spread(self._known.memory, parts, exchange)
        begun |= before.paths
        reading = ReadPart(batch, exchange, self._config.carried, self._known.history, parts, fingerprint)
        read = answers_of_tasks(self._spark, len(batch.tasks), ReadPart.ANSWERS, reading)
        files = [tuple(row.values()) for answer in read for row in answer["file"].to_pylist()]
        begun |= {path for path, _ in files}
        runs, last, frontiers, changes = (
            pa.concat_tables([answer[name] for answer in read]) for name in ReadPart.ANSWERS[:4]
        )
        rows = contiguous(position, seen_in_runs(pl.DataFrame(runs)), self._job.name)
        if not rows.records:
            return Progress(0, {})
        newest = last.sort_by([(LSN, "descending")]).select(fingerprint).slice(0, 1).to_pylist()[0]
        after = position_after(self._job.reads, self._at, rows.next, newest)
        self._journal.refresh()
        ends_table, of_batch = rows.next >= self._journal.next_lsn, pl.DataFrame(frontiers)
        frontier = batch_frontier(
            of_batch, ends_table=ends_table, before=self._known.frontier, preceding=self._known.preceding_frontier
        )
        deciding = DecidePart(files, exchange, before.parts, frontier, self._limit_bytes, self.sizes.step_rows)
        decided = answers_of_tasks(self._spark, parts, DecidePart.ANSWERS, deciding)
        memory = SpreadMemory(exchange, before.schema, parts_in(decided))
        outcomes = [(answer["file"]["path"][0].as_py(), pl.Series(answer["decided"][DECIDED])) for answer in decided]
        begun |= memory.paths | {path for path, _ in outcomes}
        self._refuse_to_grow(memory, unread=self._journal.next_lsn - rows.next)
        people = self._take_changes(pl.DataFrame(changes), after)
        history = self._known.history
        if any(len(lsns) for _, lsns in outcomes):
            history = rules_after(history, rows.first, rows.next, self._config.deciding)
        known = Known(Memory.empty(before.schema), frontier, last_frontier(of_batch), history)
        self._commit_files(outcomes, people, exchange, (known, memory), after)
        self._spread = memory
        return Progress(rows.records, _added([answer["counts"] for answer in decided]))

    def _exchange(self) -> Exchange:
        return Exchange(self._usage.folder)

    def _gather(self) -> None:
        """What tasks have left waits in the driver again."""
        if self._spread is not None:
            left, self._known = self._spread, replace(self._known, memory=self._spread.gathered())
            self._spread = None
            left.exchange.remove(left.paths)

    @property
    def _memory(self) -> Memory | SpreadMemory:
        return self._known.memory if self._spread is None else self._spread

    def _new(self, batch: DataFrame | pa.Table) -> tuple[pa.Table, LsnRange]:
        position, job, fingerprint = self._at.next_lsn, self._job.name, FINGERPRINT[self._job.reads]
        if isinstance(batch, pa.Table):
            # They are complete: `build` would only drop unneeded columns.
            return driver_new_rows(batch, position, job, fingerprint)
        return new_rows(
            batch, position, job, lambda rows: self._job.build(rows, self._config), fingerprint, keeps_rows=True
        )

    @property
    def _limit_bytes(self) -> int:
        return self._config.waiting_memory_mib << 20

    def _refuse_unlisted(self) -> None:
        config, late = self._config, timedelta(seconds=self._config.rejoin_seconds)
        prices = self._catalog.stored[Table.PRICES]
        now = self._clock.now()
        refuse_unlisted(prices, config.attributes, now, late)
        refuse_period_tiers(prices, config.declared, now, late)

    def _refuse_to_grow(self, memory: Memory | SpreadMemory, unread: int) -> None:
        """Wait while what must be remembered would not fit: before anything is changed, and never for what shrinks.

        Only F frees it. F may have moved already, but in rows behind these, which must be remembered until then.
        """
        needed = memory.size_bytes()
        if needed > self._limit_bytes and needed > self._memory.size_bytes():
            # As if all unread rows had to be remembered: this much is certainly enough.
            enough = needed + max(0, unread) * needed // memory.records()
            raise NotYet(
                Cause.MEMORY,
                f"joins.waiting_memory_mib is {self._config.waiting_memory_mib}, too little for what joins must "
                f"remember while the frontier is stuck: the next rows need {(needed >> 20) + 1}, all {unread} that "
                f"follow at most {(enough >> 20) + 1}. Set it to that: on a laptop in the file of `weir up --config "
                "FILE`; on a cluster jobs.joins.config.waiting_memory_mib, and raise "
                "jobs.joins.driver.memoryOverhead by as much. And find the partition of `events` that is offline or "
                "gets no heartbeat",
            )

    def _priced(self, outcomes: pl.DataFrame) -> pa.Table:
        """In the order of the journal, each with its day."""
        ordered = outcomes.sort(pl.max_horizontal("request_lsn", "completion_lsn"))
        return priced(ordered, self._config, *self._catalog.versions(), self._catalog.days)

    def _commit(self, usage: pa.Table, known: Known, after: Position) -> None:
        now = self._clock.now()
        transactions = self._transactions(known, known.memory, after)
        # Rules that changed hold from the next batch on: what decides is kept before it decides.
        rules = self._rules_of(known, now) if len(usage) else {}

        def numbered(first_lsn: int) -> tuple[pa.Table, dict[str, int]]:
            rows = usage_rows(usage, first_lsn, now, rules_text(rules), known.frontier)
            return rows, {**transactions, **_rules_at(rules, first_lsn), LSN: first_lsn + len(rows)}

        self._usage.append(numbered)
        self._committed(known, after, rules, now)

    def _commit_files(
        self,
        outcomes: Sequence[tuple[str, pl.Series]],
        people: pa.Table,
        exchange: Exchange,
        then: tuple[Known, SpreadMemory],
        after: Position,
    ) -> None:
        """As `_commit`, of what is decided in files, and of people's decisions behind it."""
        (known, memory), now = then, self._clock.now()
        transactions = self._transactions(known, memory, after)
        count = sum(len(lsns) for _, lsns in outcomes) + len(people)
        rules = self._rules_of(known, now) if count else {}
        if not count:
            self._usage.append(lambda next_lsn: (USAGE.empty_table(), {**transactions, LSN: next_lsn}))
            self._committed(known, after, rules, now)
            return
        tables = self._usage.path.rpartition("/")[0]
        options = tuple(sorted((self._usage.folder.options or {}).items()))
        catalog = Catalogued(tables, options, self._catalog.at, self._config.of_accounts)
        stored, statistics = self._usage.stored, self._usage.statistics

        def written(first_lsn: int) -> tuple[list[NewFile], dict[str, int]]:
            ranges = ranges_of(outcomes, first_lsn, self.sizes)
            how = (rules_text(rules), known.frontier, stored, statistics)
            writing = WriteRange(ranges, exchange, self._config, catalog, people, now, *how)
            answers = answers_of_tasks(self._spark, len(ranges), WriteRange.ANSWERS, writing)
            return files_in(answers), {**transactions, **_rules_at(rules, first_lsn), LSN: first_lsn + count}

        self._usage.append_files(written)
        self._committed(known, after, rules, now)

    def _rules_of(self, known: Known, now: datetime) -> Mapping[str, Any]:
        return self._rules.document_of(known.history, now)

    def _transactions(self, known: Known, memory: Memory | SpreadMemory, after: Position) -> dict[str, int]:
        transactions = {**transactions_of(Table.JOURNAL, after), **memory.waiting()}
        transactions |= {
            name: value for name, value in self._catalog.state().items() if self._usage.known.get(name) != value
        }
        if known.frontier is not None:
            transactions[FRONTIER] = microseconds_of(known.frontier)
        return transactions

    def _committed(self, known: Known, after: Position, rules: Mapping[str, Any], now: datetime) -> None:
        if rules:
            self._rules.written_of(known.history, now)
        self._known, self._at = known, after

    def position(self) -> int:
        """The next lsn of the journal."""
        return self._at.next_lsn

    def advance(self) -> None:
        """The journal's heartbeats move the frontier, but they do not show deletions that capture has missed."""
        self._deletions.look_if_due(self._catalog.stored, self._known.frontier)

    def frontier(self) -> datetime | None:
        """F of the journal prefix that usage was made from."""
        return self._known.frontier

    def status(self) -> dict[str, Any]:
        """How many requests and completions wait, what all that is remembered takes, and deletions that were not
        captured.
        """
        waiting = self._memory.waiting()
        return {
            "waiting": waiting["waiting"],
            "oldest_waiting_lsn": waiting["waiting.lsn"] or None,
            "waiting_bytes": self._memory.size_bytes(),
            "waiting_limit_bytes": self._limit_bytes,
            "unpropagated_deletions": self._deletions.rows,
        }

    def gauges(self) -> Mapping[GaugeMetric, float]:
        """What waits, what all that is remembered takes and may take, how long a request waits; deletions that were not
        captured.
        """
        return {
            metrics.WAITING: self._memory.waiting()["waiting"],
            metrics.WAITING_MEMORY: self._memory.size_bytes(),
            metrics.WAITING_MEMORY_LIMIT: self._limit_bytes,
            metrics.TIMEOUT: self._config.completion_timeout_seconds,
            metrics.UNPROPAGATED_DELETIONS: self._deletions.rows,
            metrics.EARLIER_UNPROPAGATED_DELETIONS: self._deletions.rows,
        }

    def close(self) -> None:
        """Remove the files that only this driver knows."""
        if self._spread is not None:
            self._spread.exchange.remove(self._spread.paths)


def _rules_at(rules: Mapping[str, Any], first_lsn: int) -> dict[str, int]:
    return {RULES: first_lsn} if rules else {}


def _added(counted: Sequence[pa.Table]) -> Counts:
    """The counts of all parts (outcome, len)."""
    every = pl.DataFrame(pa.concat_tables(counted)).group_by("outcome").agg(pl.sum("len"))
    return {(metrics.OUTCOMES, outcome): count for outcome, count in every.iter_rows()}


def _counts(outcomes: pl.DataFrame) -> Counts:
    return {(metrics.OUTCOMES, outcome): count for outcome, count in outcomes.group_by("outcome").len().iter_rows()}
